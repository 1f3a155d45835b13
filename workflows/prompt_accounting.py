"""Where every prompt that was read has gone (pure)."""

from collections import Counter
from dataclasses import dataclass, field

DROP_REASONS = ("malformed", "empty", "duplicate", "contaminated", "too_long", "over_limit")


@dataclass
class Accounting:
    """Every row read is used or dropped for one reason."""

    read: int = 0
    used: int = 0
    dropped: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(DROP_REASONS, 0)))

    def check(self) -> None:
        assert self.read == self.used + self.dropped.total(), f"prompts do not add up: {self}"
