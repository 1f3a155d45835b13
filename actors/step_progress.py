"""progress.json in a step's folder: how far it is, for whoever looks (pure). No part of any result."""

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from actors.commit import replace_atomically
from actors.typed_json import read_json

FILE, POOL = "progress.json", "pool.json"


@dataclass(frozen=True)
class StepProgress:
    """`rate` in units a second, `left_s` seconds: None while nothing can be said. `more`: a few numbers by name."""

    label: str
    done: int
    total: int
    unit: str
    rate: float | None = None
    left_s: float | None = None
    more: dict[str, float] = field(default_factory=dict)
    time: float = field(default_factory=time.time)  # s since 1970


@dataclass(frozen=True)
class PoolNote:
    """Of a pool of extraction workers: those that are ready, and deaths of shards under their workers so far."""

    workers: int
    deaths: int


def note(folder: Path, progress: StepProgress) -> None:
    replace_atomically(folder / FILE, json.dumps(asdict(progress)))


def note_pool(folder: Path, pool: PoolNote) -> None:
    replace_atomically(folder / POOL, json.dumps(asdict(pool)))


def read(folder: Path) -> StepProgress | None:
    """What was noted last; None when nothing was, or it is damaged."""
    return read_json(folder / FILE, StepProgress)


def read_pool(folder: Path) -> PoolNote | None:
    return read_json(folder / POOL, PoolNote)


def forget(folder: Path) -> None:
    """An attempt begins: what an earlier one noted is no progress of it."""
    for name in (FILE, POOL):
        (folder / name).unlink(missing_ok=True)
