"""Which nodes a step may take: Ray's label selectors, `value`, `!value`, `in(a, b)` and `!in(a, b)` for each label."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

VALUE = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
CONDITION = re.compile(rf"(?P<not>!?)(?:in\((?P<several>{VALUE}(?:, ?{VALUE})*)\)|(?P<one>{VALUE}))")


@dataclass(frozen=True)
class Place:
    """Nodes that a step may take, and how long it waits when they are too few; `key` is where that is configured."""

    wait_s: float = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    key: str = "cluster.labels"

    def said(self) -> str:
        """As ` labelled role=extract (cluster.labels.extract)`; nothing when any node will do."""
        if not self.labels:
            return ""
        pairs = ", ".join(f"{name}={condition}" for name, condition in sorted(self.labels.items()))
        return f" labelled {pairs} ({self.key})"


ANYWHERE = Place()


def is_condition(text: str) -> bool:
    return CONDITION.fullmatch(text) is not None


def fits(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether a node with `labels` is one that `selector` asks for, as Ray's scheduler sees it."""
    return all(_holds(condition, labels.get(name)) for name, condition in selector.items())


def _holds(condition: str, value: str | None) -> bool:
    found = CONDITION.fullmatch(condition)
    if not found:
        return False
    wanted = re.split(r", ?", found["several"]) if found["several"] else [found["one"]]
    return (value in wanted) != bool(found["not"])
