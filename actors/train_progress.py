"""How fast a training worker is, from speculators' per-step metrics."""

import logging
import time
from typing import Any

log = logging.getLogger("eyrie.train")
WARM_UP = 10  # steps


class TrainProgress:
    """A line every few seconds from speculators' per-step metrics, and the rate once training is warm."""

    def __init__(self, steps: int, every_s: float):
        self._steps, self._every = steps, every_s
        self._last = self._began = time.monotonic()
        self._done: list[tuple[float, float]] = []  # tokens and seconds of each step

    @property
    def rate(self) -> float | None:
        """Tokens/s of this worker's steps without the first ones, which compile; None when it made none."""
        warm = self._done[min(WARM_UP, len(self._done) // 2) :]
        return sum(tokens for tokens, _ in warm) / sum(s for _, s in warm) if warm else None

    def __call__(self, message: dict[str, Any]) -> None:
        if "train" not in message:
            return
        profile = message["profile"]
        seconds = profile["step_ms"] / 1000
        self._done.append((profile["tokens_per_s"] * seconds, seconds))
        now = time.monotonic()
        if now - self._last < self._every:
            return
        self._last = now
        train = message["train"]
        log.info(
            "train: step %d/%d, %.0f tok/s, loss %.3f, accuracy %.3f",
            message["global_step"] + 1,
            self._steps,
            sum(tokens for tokens, _ in self._done) / (now - self._began),
            train["loss"],
            train["full_acc_0"],
        )
