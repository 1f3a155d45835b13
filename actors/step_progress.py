"""progress.json in a step's folder: how far it is, for whoever looks (pure). No part of any result."""

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

from actors.commit import replace_atomically

FILE, POOL = "progress.json", "pool.json"


Note = TypeVar("Note")


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
    return _read(folder / FILE, StepProgress)


def read_pool(folder: Path) -> PoolNote | None:
    return _read(folder / POOL, PoolNote)


def forget(folder: Path) -> None:
    """An attempt begins: what an earlier one noted is no progress of it."""
    for name in (FILE, POOL):
        (folder / name).unlink(missing_ok=True)


def _read(file: Path, kind: type[Note]) -> Note | None:
    try:
        return kind(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        return None
