"""The outcome of comparing an engine's draft tokens with the trainer's (pure)."""

from dataclasses import dataclass
from math import comb

EQUAL = 0.99  # of the tokens, in half precision
CHANCE = 1e-3  # that a draft of exactly that share is refused: of 48 tokens, 4 may then be ties


@dataclass(frozen=True)
class Proposals:
    """Draft tokens of one engine against the trainer's."""

    compared: int
    equal: int
    ties: int  # of those that are not equal
    examples: tuple[str, ...]  # of those that are neither

    def holds(self, dtype: str) -> bool:
        """All equal in float32; else at least 99 %, as far as so many tokens can tell, and the rest ties."""
        unequal = self.compared - self.equal
        enough = unequal == 0 or (dtype != "float32" and _at_least(unequal, self.compared) >= CHANCE)
        return self.compared > 0 and unequal == self.ties and enough


def _at_least(unequal: int, compared: int) -> float:
    """Probability of so many unequal tokens, or more, when each is unequal with 1 - EQUAL."""
    fewer = (comb(compared, k) * (1 - EQUAL) ** k * EQUAL ** (compared - k) for k in range(unequal))
    return 1 - sum(fewer)
