"""held_out.json in the output of training: what the draft is worth at each place of the held-out answers (pure)."""

from dataclasses import asdict
from typing import Any

from actors.speculation import Answer

HELD_OUT = "held_out.json"
LONGEST = 8  # draft tokens of a step that are judged; the benchmark may ask for any number up to this


def answers_to_json(found: dict[int, Answer]) -> dict[str, Any]:
    """By sample number."""
    return {str(sample): asdict(answer) for sample, answer in found.items()}


def answers_from_json(content: dict[str, Any]) -> dict[int, Answer]:
    return {int(sample): Answer(one["tokens"], tuple(one["hits"])) for sample, one in content.items()}
