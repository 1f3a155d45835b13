"""Which shards took their engine down, and which sample of them, in files: the dead cannot report (pure).

A shard whose worker died DEATHS times is a suspect: it runs alone on a worker, sample after sample, each named in a
file before its turn. A sample that was at its turn SAMPLE_DEATHS times when the worker died is lost: it goes to the
dead letters, and the shard is finished without it. Workers killed by accident only make suspects, which then clear
themselves.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from actors.commit import replace_atomically
from actors.dead_letters import read_dead_letters

FOLDER = "attempts"
DEATHS = 3  # of a shard among others, whoever's fault
SAMPLE_DEATHS = 3  # of a sample at its turn: nothing else ran then, but a machine may go at any time


@dataclass
class Attempts:
    """What is known of one shard. `samples`: deaths by sample number."""

    deaths: int = 0
    samples: dict[str, int] = field(default_factory=dict)

    @property
    def suspect(self) -> bool:
        return self.deaths >= DEATHS

    @property
    def lost(self) -> list[int]:
        """Samples to be finished without."""
        return sorted(int(sample) for sample, deaths in self.samples.items() if deaths >= SAMPLE_DEATHS)


class Suspects:
    """The attempts at the shards of one step, below its folder `out`."""

    def __init__(self, out: Path):
        self._out, self._folder = out, out / FOLDER

    def of(self, shard: int) -> Attempts:
        file = self._file(shard)
        return Attempts(**json.loads(file.read_text())) if file.exists() else Attempts()

    def all_lost(self) -> list[int]:
        """Lost samples of the shards that are not committed yet, and of those that are."""
        folder = self._folder.glob("shard-*.json") if self._folder.exists() else ()
        open_ = [sample for file in folder for sample in Attempts(**json.loads(file.read_text())).lost]
        return sorted({*open_, *(letter["sample"] for letter in read_dead_letters(self._out))})

    def another_chance(self) -> None:
        """A new run may have another engine: a lost sample of an open shard gets one more turn."""
        for file in self._folder.glob("shard-*.json") if self._folder.exists() else ():
            known = Attempts(**json.loads(file.read_text()))
            known.samples = {sample: min(n, SAMPLE_DEATHS - 1) for sample, n in known.samples.items()}
            known.deaths = min(known.deaths, DEATHS)
            replace_atomically(file, json.dumps(asdict(known)))

    def died(self, shard: int) -> Attempts:
        """Count a death of the worker that held `shard`, against the sample whose turn it was if one was named."""
        known = self.of(shard)
        known.deaths += 1
        turn = self._turn(shard)
        if turn.exists():
            sample = turn.read_text()
            known.samples[sample] = known.samples.get(sample, 0) + 1
            turn.unlink()
        self._folder.mkdir(parents=True, exist_ok=True)
        replace_atomically(self._file(shard), json.dumps(asdict(known)))
        return known

    def turn(self, shard: int, sample: int) -> None:
        """Called by the worker before it lets the engine see `sample`."""
        self._folder.mkdir(parents=True, exist_ok=True)
        replace_atomically(self._turn(shard), str(sample))

    def over(self, shard: int) -> None:
        """Called by the worker when every sample has had its turn."""
        self._turn(shard).unlink(missing_ok=True)

    def cleared(self, shard: int) -> None:
        """The shard is committed: nothing is held against it."""
        self._file(shard).unlink(missing_ok=True)
        self._turn(shard).unlink(missing_ok=True)

    def _file(self, shard: int) -> Path:
        return self._folder / f"shard-{shard:05d}.json"

    def _turn(self, shard: int) -> Path:
        return self._folder / f"shard-{shard:05d}.turn"
