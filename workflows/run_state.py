"""How a run stands: state.json in its folder, written as its steps begin and end, for whoever looks (pure)."""

import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from actors.commit import replace_atomically
from actors.typed_json import read_json
from workflows.step import Step

FILE = "state.json"
WAITING, RUNNING, DONE, FAILED, STOPPED = "waiting", "running", "done", "failed", "stopped"
Observer = Callable[[str, str], None]  # (step, state)


@dataclass
class StepState:
    """`folder` is relative to the output root; times in s since 1970."""

    step: str
    folder: str
    needs: list[str]
    state: str = WAITING
    began: float | None = None
    ended: float | None = None
    message: str = ""


@dataclass
class RunState:
    """Of one driver. `steps` in the order in which they run; `lease` is the token of the lease that it held."""

    name: str
    lease: str
    steps: list[StepState]
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    began: float = field(default_factory=time.time)


class Account:
    """Keeps state.json in `run_dir`, and tells `observe` of every change."""

    def __init__(
        self, run_dir: Path, name: str, lease: str, steps: Sequence[Step], observe: Observer = lambda *_: None
    ) -> None:
        self._file, self._observe = run_dir / FILE, observe
        states = [StepState(s.name, f"{s.name}/{s.short}", [dep.name for dep in s.deps]) for s in steps]
        self._run = RunState(name, lease, states)
        run_dir.mkdir(parents=True, exist_ok=True)
        self._write()
        for one in states:
            observe(one.step, one.state)

    def set(self, step: str, state: str, message: str = "") -> None:
        (one,) = (one for one in self._run.steps if one.step == step)
        one.state, one.message = state, message
        if state == RUNNING:
            one.began, one.ended = time.time(), None
        elif one.began is not None:
            one.ended = time.time()
        self._write()
        self._observe(step, state)

    def _write(self) -> None:
        replace_atomically(self._file, json.dumps(asdict(self._run), indent=1))


def newest(root: Path) -> RunState | None:
    """Of the last driver that wrote below `root`; None when none ever did."""
    files = sorted(root.glob(f"runs/*/{FILE}"), key=lambda file: file.stat().st_mtime_ns, reverse=True)
    runs = (read_json(file, RunState) for file in files)
    return next((run for run in runs if run), None)  # a damaged one is passed over: the one before tells something
