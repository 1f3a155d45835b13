"""How fast a training worker is, from speculators' per-step metrics."""

import logging
import math
import time
from pathlib import Path
from typing import Any

from actors.metrics import Metrics
from actors.step_progress import StepProgress, note

log = logging.getLogger("eyrie.train")
WARM_UP = 10  # steps


class TrainProgress:
    """A line every few seconds from speculators' per-step metrics, and the rate once training is warm."""

    def __init__(self, steps: int, every_s: float, metrics: Metrics, workers: int = 1, out: Path | None = None):
        self._steps, self._every, self._workers = steps, every_s, workers
        self._metrics, self._train_step, self._loss = metrics, 0, math.nan
        self._out = out  # of the step, where progress is noted
        self._last = time.monotonic()
        self._done: list[tuple[float, float]] = []  # tokens and seconds of each step

    @property
    def rate(self) -> float | None:
        """Tokens/s of this worker's steps without the first ones, which compile; None when it made none."""
        warm = self._done[min(WARM_UP, len(self._done) // 2) :]
        return sum(tokens for tokens, _ in warm) / sum(s for _, s in warm) if warm else None

    def _note(self, out: Path, loss: float) -> None:
        last = self._done[-WARM_UP:]
        rate = len(last) / max(1e-9, sum(seconds for _, seconds in last))
        more = {"loss": loss, "tokens_per_s": self._workers * self._recent()}
        left = (self._steps - self._train_step) / rate
        note(out, StepProgress("train", self._train_step, self._steps, "steps", rate, left, more))

    def _recent(self) -> float:
        """Tokens/s of the last steps of this worker."""
        last = self._done[-WARM_UP:]
        return sum(tokens for tokens, _ in last) / max(1e-9, sum(s for _, s in last))

    def __call__(self, message: dict[str, Any]) -> None:
        if "train" not in message:
            return
        profile = message["profile"]
        seconds = profile["step_ms"] / 1000
        self._done.append((profile["tokens_per_s"] * seconds, seconds))
        self._metrics.count("tokens_trained", self._done[-1][0] * self._workers)
        self._train_step, self._loss = message["global_step"] + 1, message["train"]["loss"]
        if len(self._done) == 1:
            self._metrics.show("train_step", lambda: self._train_step)
            self._metrics.show("train_loss", lambda: self._loss)
            self._metrics.show("train_tokens_per_second", lambda: self._workers * self._recent())
        now = time.monotonic()
        if now - self._last < self._every:
            return
        self._last = now
        train = message["train"]
        if self._out:
            self._note(self._out, train["loss"])
        log.info(
            "train: step %d/%d, %.0f tok/s, loss %.3f, accuracy %.3f",
            message["global_step"] + 1,
            self._steps,
            self._workers * self._recent(),
            train["loss"],
            train["full_acc_0"],
        )
