"""What an engine's draft was given and what it proposed while one request ran (pure)."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class DraftTrace:
    """Shapes: S tokens with states, A aux layers, H hidden size, k draft tokens."""

    token_ids: list[int]  # prompt and answer, at least S + 1
    prompt: int  # tokens
    states: np.ndarray  # [S, A * H] float32, as the draft reads them: before its norms and fc
    proposed: dict[int, list[int]]  # anchor (index of the last token whose state was read) -> k verifier token ids


def read_trace(file: Path, token_ids: list[int], prompt: int) -> DraftTrace:
    """Of a file that actors/vllm_draft_recorder.py wrote, for a request that read and wrote `token_ids`.

    A step verifies k proposed tokens and reads the states of all; those of rejected ones are given again, for the
    tokens that stand there, by a later step.
    """
    rows: dict[int, np.ndarray] = {}
    proposed: dict[int, list[int]] = {}
    with np.load(file) as content:
        for step in range(1 + max(int(name.split("/")[0]) for name in content.files)):
            positions, states, rejected = (content[f"{step}/{key}"] for key in ("positions", "states", "rejected"))
            valid = positions[: len(positions) - int(rejected[0])].tolist()
            rows |= dict(zip(valid, states, strict=False))
            proposed[valid[-1]] = content[f"{step}/proposed"].tolist()
    ordered = np.stack([rows[position] for position in range(len(rows))])
    anchors = {anchor: tokens for anchor, tokens in proposed.items() if prompt - 1 <= anchor < len(token_ids) - 1}
    return DraftTrace(token_ids, prompt, ordered[: len(token_ids) - 1], anchors)
