"""SIGTERM, which `ray job stop` sends: stop feeding, let what is in flight be committed, leave (no ray).

Elsewhere the driver leaves at once: nothing that is half done counts, and the same command resumes.
"""

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

log = logging.getLogger(__name__)
EXIT = 128 + signal.SIGTERM


class Stop:
    """Whether somebody asked this driver to stop."""

    def __init__(self, grace_s: float, clock: Callable[[], float] = time.monotonic):
        self._grace_s, self._clock = grace_s, clock
        self._asked: float | None = None

    def leave_when_asked(self) -> None:
        """From now on SIGTERM ends this driver, in place of Ray's handler."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._leave)

    @contextmanager
    def one_exit_code(self) -> Iterator[None]:
        """A driver that was asked to stop ends with EXIT; ray.get makes SystemExit(1) of what a handler raises."""
        try:
            yield
        except SystemExit:
            if self._asked is None:
                raise
            raise SystemExit(EXIT) from None

    @contextmanager
    def patiently(self) -> Iterator[Callable[[], bool]]:
        """A stretch that ends by itself soon after the function it gets says so; SystemExit then follows.

        When the grace is over the function raises SystemExit: what is not committed by then is done again. Only the
        main thread hears signals; in another one, nobody asks.
        """
        if threading.current_thread() is not threading.main_thread():
            yield self._look
            return
        before = signal.signal(signal.SIGTERM, self._handle)  # now, since ray.init sets a handler of its own
        try:
            yield self._look
        finally:
            signal.signal(signal.SIGTERM, before)
        if self._asked is not None:
            log.warning("stopped as asked; the same command goes on from here")
            raise SystemExit(EXIT)

    def _look(self) -> bool:
        if self._asked is not None and self._clock() - self._asked > self._grace_s:
            log.warning("stopped after %g s (cluster.stop_grace_s) with shards in flight", self._grace_s)
            raise SystemExit(EXIT)
        return self._asked is not None

    def _leave(self, signum: int, frame: FrameType | None) -> None:
        self._asked = self._clock()
        raise SystemExit(EXIT)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self._asked is None:
            self._asked = self._clock()
            log.warning("SIGTERM: no new shards; those in flight get %g s (cluster.stop_grace_s)", self._grace_s)
