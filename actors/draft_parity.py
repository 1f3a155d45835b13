"""The draft gate: an engine's draft reads the states that were trained on, and proposes what the trainer's model does.

The states come with the trace, so the comparison is of the draft alone: weights, norms, rope, vocabulary map. What the
engine proposes behind a token that the verifier did not write changes nothing and is not compared.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from actors.draft_model import load_draft
from actors.draft_proposals import Proposals
from actors.draft_trace import DraftTrace
from actors.predicted_acceptance import proposals

# A tie: two logits this near, in units of the larger one, are ordered by rounding. Weights, states and sums of half a
# dozen products are rounded in half precision; in float32 nothing but the order of summation differs.
TIE = {"bfloat16": 16 * 2.0**-8, "float16": 16 * 2.0**-11, "float32": 1e-4}


def compare(draft: str, traces: Sequence[DraftTrace], dtype: str) -> Proposals:
    """Of the trainer's checkpoint `draft`, in float32 on a CPU, and the traces of an engine that computes in `dtype`.

    A Ray task: it loads the draft, which a driver may have no room for.
    """
    model = load_draft(Path(draft), attention="eager")
    compared = equal = ties = 0
    examples: list[str] = []
    for trace in traces:
        k = max(map(len, trace.proposed.values()))
        ours, logits = _proposals(model, trace, k)
        for anchor, theirs in sorted(trace.proposed.items()):
            for step, token in enumerate(theirs):
                compared += 1
                our_token = int(ours[step, anchor])
                if our_token == token:
                    equal += 1
                elif _tied(model, logits[step][anchor], token, dtype):
                    ties += 1
                elif len(examples) < 5:
                    examples.append(f"after token {anchor + 1}, draft token {step + 1}: {token}, not {our_token}")
                at = anchor + 2 + step
                if at >= len(trace.token_ids) or trace.token_ids[at] != token:
                    break  # what follows was proposed behind a wrong token
    return Proposals(compared, equal, ties, tuple(examples))


def _proposals(model: Any, trace: DraftTrace, k: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """[k, n] verifier ids after each state, and the logits [n, draft vocabulary] of each step."""
    logits: list[torch.Tensor] = []
    hook = model.lm_head.register_forward_hook(lambda _, __, out: logits.append(out[0]))
    length = min(len(trace.states), len(trace.token_ids) - 1)
    row = {
        "hidden_states": torch.from_numpy(trace.states[:length])[None],
        "input_ids": torch.tensor([trace.token_ids[1 : length + 1]]),
        "document_ids": torch.zeros(1, length, dtype=torch.long),
        "position_ids": torch.arange(1, length + 1)[None],
    }
    try:
        return proposals(model, row, k), logits
    finally:
        hook.remove()


def _tied(model: Any, logits: torch.Tensor, token: int, dtype: str) -> bool:
    """Whether the draft's logit for the verifier token is as good as the largest one."""
    if model.d2t is not None:
        found = (torch.arange(len(model.d2t)) + model.d2t == token).nonzero()
        if not len(found):
            return False
        token = int(found[0])
    return float(logits.max() - logits[token]) <= TIE[dtype] * float(logits.abs().max())
