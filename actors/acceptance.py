"""Acceptance of a draft from an engine's counters (pure).

Each draft proposes k tokens; the verifier accepts a prefix of them and adds one token of its own, so
acceptance length = 1 + accepted / drafts, between 1 and k + 1.
"""

from dataclasses import dataclass
from itertools import zip_longest

from actors.engine import SpecCounters


def difference(before: SpecCounters, after: SpecCounters) -> SpecCounters:
    """What an engine counted between two readings."""
    pairs = zip_longest(before.accepted_per_position, after.accepted_per_position, fillvalue=0)
    counted = SpecCounters(
        drafts=after.drafts - before.drafts,
        draft_tokens=after.draft_tokens - before.draft_tokens,
        accepted=after.accepted - before.accepted,
        accepted_per_position=tuple(b - a for a, b in pairs),
    )
    if min(counted.drafts, counted.draft_tokens, counted.accepted, *counted.accepted_per_position, 0) < 0:
        raise ValueError(f"counters went back from {before} to {after}: the engine was restarted in between; run again")
    return counted


@dataclass(frozen=True)
class Acceptance:
    """Acceptance over some drafts; ValueError when there were none or the counters contradict each other."""

    drafts: int
    draft_tokens: int
    accepted: int
    accepted_per_position: tuple[int, ...]

    @classmethod
    def of(cls, counted: SpecCounters) -> "Acceptance":
        return cls(counted.drafts, counted.draft_tokens, counted.accepted, counted.accepted_per_position)

    def __post_init__(self) -> None:
        positions = self.accepted_per_position
        if self.drafts == 0:
            raise ValueError(
                "the engine drafted nothing: the draft is not in use, every answer was one token long, or the engine "
                "keeps no statistics. Look for the speculative config in the engine's log."
            )
        falling = all(a >= b for a, b in zip((self.drafts, *positions), positions, strict=False))
        if sum(positions) != self.accepted or self.accepted > self.draft_tokens or not falling:
            raise ValueError(
                f"the engine's counters contradict each other: {self}. Other requests ran at the same time?"
            )

    @property
    def acceptance_length(self) -> float:
        """Tokens gained by each pass of the verifier."""
        return 1 + self.accepted / self.drafts

    @property
    def per_position(self) -> list[float]:
        """Share of drafts whose token at each position was accepted, [k]."""
        return [accepted / self.drafts for accepted in self.accepted_per_position]
