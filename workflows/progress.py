"""Progress of long work: done of total, rate, time left; a live line on a terminal, a line now and then elsewhere."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from actors.step_progress import StepProgress, note
from workflows.live import live

log = logging.getLogger(__name__)
EVERY = 30.0  # seconds between two lines
NOTED = 2.0  # seconds between two notes in the step's folder
_folder: ContextVar[Path | None] = ContextVar("folder", default=None)


@contextmanager
def noted_in(folder: Path) -> Iterator[None]:
    """While the block lasts, progress is noted there too, for `python -m workflows.status`."""
    token = _folder.set(folder)
    try:
        yield
    finally:
        _folder.reset(token)


class Progress:
    """Callable with (done, total). The end is always logged. The rate is of what comes after the first call: before it
    lie engine starts of minutes, and what earlier runs did."""

    def __init__(
        self, label: str, total: int, unit: str, *, every: float = EVERY, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.label, self.total, self.unit = label, total, unit
        self._every, self._clock = every, clock
        self._began = self._logged = clock()
        self._noted = -NOTED
        self._first: int | None = None
        self._finished = False
        self._live = live()
        self._task = self._live.add_task(label, total=total, said=unit) if self._live else None

    def __call__(self, done: int, total: int | None = None) -> None:
        if total is not None:
            self.total = total
        now = self._clock()
        if self._first is None:
            self._first, self._began = done, now
        ends = done >= self.total and not self._finished
        seconds, fresh = now - self._began, done - self._first
        rate = fresh / seconds if seconds > 0 else 0.0
        self._note(done, rate, now, ends)
        self._show(done, rate, ends)
        if not ends and (now - self._logged < self._every or self._finished or self._live):
            return
        self._logged, self._finished = now, done >= self.total
        line = f"{self.label}: {done}/{self.total} {self.unit}"
        if rate > 0:
            left = "" if self._finished else f", {duration((self.total - done) / rate)} left"
            line += f", {rate:.3g} {self.unit}/s{left}"
        log.info(line)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """No more will come, finished or not."""
        if self._live and self._task is not None:
            self._live.remove_task(self._task)
            self._task = None
            if not self._live.tasks:
                self._live.stop()

    def _note(self, done: int, rate: float, now: float, ends: bool) -> None:
        folder = _folder.get()
        if folder is None or not ends and now - self._noted < NOTED:
            return
        self._noted = now
        left = (self.total - done) / rate if rate > 0 else None
        note(folder, StepProgress(self.label, done, self.total, self.unit, rate or None, left))

    def _show(self, done: int, rate: float, ends: bool) -> None:
        if self._live is None or self._task is None:
            return
        said = f"{self.unit}, {rate:.3g}/s" if rate > 0 else self.unit
        self._live.start()
        self._live.update(self._task, completed=done, total=self.total, said=said)
        if ends:
            self.close()


def duration(seconds: float) -> str:
    """12 s, 3 min 05 s, 2 h 07 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
