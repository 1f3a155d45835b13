"""What each kind of fault did, as a table and as JSON."""

import json
import os
import platform
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from workflows.tables import plain


@dataclass
class Tally:
    """Of one kind of fault. Survived: the work went on, or was done."""

    injected: int = 0
    survived: int = 0
    recovery_s: list[float] = field(default_factory=list)  # until the next shard was committed, or step was trained


class Tallies(dict[str, Tally]):
    def __missing__(self, fault: str) -> Tally:
        return self.setdefault(fault, Tally())

    def injected(self) -> int:
        return sum(tally.injected for tally in self.values())

    def table(self) -> str:
        rows = []
        for fault, tally in sorted(self.items()):
            times = sorted(tally.recovery_s)
            seconds = [f"{times[len(times) // 2]:.1f}", f"{times[-1]:.1f}"] if times else ["", ""]
            rows.append([fault, str(tally.injected), str(tally.survived), *seconds])
        return plain(["fault", "injected", "survived", "median s to go on", "longest"], rows)

    def write(self, file: Path, **more: Any) -> None:
        machine = {"cpus": os.cpu_count(), "machine": platform.machine(), "ray": version("ray")}
        faults = {fault: asdict(tally) for fault, tally in sorted(self.items())}
        file.write_text(json.dumps({**more, **machine, "faults": faults}, indent=1) + "\n")
