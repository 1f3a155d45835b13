"""Greedy speculation over a finished answer, replayed without an engine (pure).

The verifier writes the first token of an answer alone. From then on the draft proposes k tokens, the verifier accepts
those that equal what it writes, up to the first that does not, and adds one of its own. Where the text is known, so is
how every such step ends. A step counts only when all k of its tokens lie inside the known text.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from actors.engine import SpecCounters


@dataclass(frozen=True)
class Answer:
    """What a draft is worth at each place of an answer of `tokens` known tokens.

    `hits[w - 1]`: how many tokens in a row, from the first, of what it proposes after w written tokens are right.
    """

    tokens: int
    hits: tuple[int, ...]


def accepted_steps(answer: Answer, k: int) -> list[int]:
    """Accepted draft tokens of each step, with `k` proposed each time."""
    written, steps = 1, []
    while written + k <= answer.tokens:
        steps.append(min(answer.hits[written - 1], k))
        written += steps[-1] + 1
    return steps


def judged_steps(accepted: Sequence[int], tokens: int, k: int) -> list[int]:
    """Those of an engine's own steps that `accepted_steps` would count in an answer of `tokens` known tokens."""
    written, steps = 1, []
    for one in accepted:
        if written + k > tokens:
            break
        steps.append(one)
        written += one + 1
    return steps


def counters(steps: Iterable[int], k: int) -> SpecCounters:
    """As an engine counts these steps."""
    counted = list(steps)
    per_position = tuple(sum(one > position for one in counted) for position in range(k))
    return SpecCounters(len(counted), k * len(counted), sum(counted), per_position)
