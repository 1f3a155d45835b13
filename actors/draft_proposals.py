"""The outcome of comparing an engine's draft tokens with the trainer's (pure)."""

from dataclasses import dataclass

EQUAL = 0.99  # of the tokens, in half precision


@dataclass(frozen=True)
class Proposals:
    """Draft tokens of one engine against the trainer's."""

    compared: int
    equal: int
    ties: int  # of those that are not equal
    examples: tuple[str, ...]  # of those that are neither

    def holds(self, dtype: str) -> bool:
        """All equal in float32; else almost all, and the rest ties."""
        unequal = self.compared - self.equal
        allowed = 0 if dtype == "float32" else max(1, round((1 - EQUAL) * self.compared))
        return self.compared > 0 and unequal == self.ties and unequal <= allowed
