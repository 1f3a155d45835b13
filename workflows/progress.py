"""Progress of long work in the log: done of total, rate, time left."""

import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)
EVERY = 10.0  # seconds between two lines


class Progress:
    """Callable with (done, total). The end is always logged. The rate is of what comes after the first call: before it
    lie engine starts of minutes, and what earlier runs did."""

    def __init__(
        self, label: str, total: int, unit: str, *, every: float = EVERY, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.label, self.total, self.unit = label, total, unit
        self._every, self._clock = every, clock
        self._began = self._logged = clock()
        self._first: int | None = None
        self._finished = False

    def __call__(self, done: int, total: int | None = None) -> None:
        if total is not None:
            self.total = total
        now = self._clock()
        if self._first is None:
            self._first, self._began = done, now
        ends = done >= self.total and not self._finished
        if not ends and (now - self._logged < self._every or self._finished):
            return
        self._logged, self._finished = now, done >= self.total
        seconds, fresh = now - self._began, done - self._first
        rate = fresh / seconds if seconds > 0 else 0.0
        line = f"{self.label}: {done}/{self.total} {self.unit}"
        if rate > 0:
            left = "" if self._finished else f", {duration((self.total - done) / rate)} left"
            line += f", {rate:.3g} {self.unit}/s{left}"
        log.info(line)


def duration(seconds: float) -> str:
    """12 s, 3 min 05 s, 2 h 07 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
