"""Predicted acceptance against measured acceptance on the same held-out conversations (pure).

The prediction is the trainer's forward replayed as the engine decodes (actors/speculation.py), so the two are the same
quantity. Where they part, what is served is not what was trained. Intervals are bootstraps over conversations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from actors.acceptance import Acceptance
from actors.speculation import counters

FIRST_POSITION = 0.02  # apart at position 0
LENGTH = 0.03  # apart in acceptance length, relative
ENOUGH = 8  # conversations; the interval of fewer is too narrow
RESAMPLES, SEED = 2000, 0
INTERVAL = (2.5, 97.5)  # percentiles

Steps = Mapping[int, Sequence[int]]  # sample number -> accepted draft tokens of each step


@dataclass(frozen=True)
class Side:
    """One of the two; `interval` is of the acceptance length."""

    acceptance_length: float
    per_position: list[float]
    interval: tuple[float, float]
    drafts: int


@dataclass(frozen=True)
class Parity:
    predicted: Side
    measured: Side
    conversations: int
    length_apart: tuple[float, float]  # interval of measured / predicted - 1
    first_apart: tuple[float, float]  # interval of measured - predicted at position 0

    @property
    def holds(self) -> bool:
        """Whether the intervals leave room for a difference that is small enough, or tell too little to refuse."""
        few = self.conversations < ENOUGH
        return few or _near(self.length_apart, LENGTH) and _near(self.first_apart, FIRST_POSITION)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def parity(predicted: Steps, measured: Steps, k: int) -> Parity:
    """Of the conversations that both have; ValueError when they are none, or too short for one step."""
    samples = sorted(set(predicted) & set(measured))
    tables = [np.array([_counts(side[sample], k) for sample in samples]) for side in (predicted, measured)]
    if not samples or any(table[:, 0].sum() == 0 for table in tables):
        raise ValueError("no held-out answer is long enough for one draft")
    order = np.random.default_rng(SEED).integers(len(samples), size=(RESAMPLES, len(samples)))
    drawn = [table[order].sum(1) for table in tables]  # [resamples, 3] drafts, accepted, accepted first tokens
    drawn = [table[(drawn[0][:, 0] > 0) & (drawn[1][:, 0] > 0)] for table in drawn]
    lengths = [1 + table[:, 1] / table[:, 0] for table in drawn]
    first = [table[:, 2] / table[:, 0] for table in drawn]
    sides = []
    for side, length in zip((predicted, measured), lengths, strict=True):
        found = Acceptance.of(counters((step for sample in samples for step in side[sample]), k))
        sides.append(Side(found.acceptance_length, found.per_position, _interval(length), found.drafts))
    ours, theirs = sides
    return Parity(ours, theirs, len(samples), _interval(lengths[1] / lengths[0] - 1), _interval(first[1] - first[0]))


def refusal(found: Parity) -> str:
    """What to say, and to check, where they part."""
    said = ", ".join(
        f"{name} {side.acceptance_length:.3f} ({' '.join(f'{rate:.3f}' for rate in side.per_position)})"
        for name, side in (("predicted", found.predicted), ("measured", found.measured))
    )
    return (
        f"acceptance on {found.conversations} held-out conversations is not what the trainer's forward predicts: "
        f"{said}; apart by {found.length_apart[0]:+.1%} to {found.length_apart[1]:+.1%} in length (at most "
        f"{LENGTH:.0%}), {found.first_apart[0]:+.3f} to {found.first_apart[1]:+.3f} at position 0 (at most "
        f"{FIRST_POSITION}). "
        "Check, in this order: the draft gate of the convert step (does vLLM propose what the trainer proposes?); the "
        "aux layers that vLLM reads (check_checkpoint shows them); engine.dtype and quantization of extraction and "
        "benchmark (speculators#613); rope and context length of the draft (engine.max_model_len); "
        "generate.temperature and top_p, with which the held-out answers are drawn again."
    )


def _counts(steps: Sequence[int], k: int) -> tuple[int, int, int]:
    return len(steps), sum(steps), sum(step > 0 for step in steps)


def _interval(values: np.ndarray) -> tuple[float, float]:
    low, high = np.percentile(values, INTERVAL)
    return float(low), float(high)


def _near(interval: tuple[float, float], limit: float) -> bool:
    return interval[0] <= limit and interval[1] >= -limit
