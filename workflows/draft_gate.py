"""What the draft gate asks of a converted draft in the engine: the trained-on states go in, the trainer's tokens come
out (pure). actors/draft_parity.py has the second comparison, which needs the trainer's model."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from actors.capture_gate import NEAR, drift
from actors.contexts import Context
from actors.draft_proposals import Proposals
from actors.draft_trace import DraftTrace
from actors.verifier_head import bf16_to_float


def check_states(contexts: Sequence[Context], traces: Sequence[DraftTrace], layers: Sequence[int], dtype: str) -> float:
    """Largest distance of a layer, as the capture gate has it; RuntimeError when the draft reads other states."""
    worst = 0.0
    for context, trace in zip(contexts, traces, strict=True):
        trained = bf16_to_float(context.states)
        read = trace.states[: len(trained)]
        if read.shape[-1] != trained[0].size:
            raise RuntimeError(
                f"the draft reads {read.shape[-1] // trained.shape[-1]} layers in the engine, and was trained on "
                f"{len(layers)}, {list(layers)}: num_aux_hidden_states or the ids in its config.json are lost."
            )
        read = read.reshape(trained.shape)
        medians, _ = drift(trained, read)
        worst = max(worst, *medians)
        if worst > NEAR[dtype]:
            far = {layer: round(median, 3) for layer, median in zip(layers, medians, strict=True)}
            raise RuntimeError(
                f"sample {context.sample}: the draft reads other states in the engine than it was trained on; distance "
                f"in units of that between tokens, at most {NEAR[dtype]:g}: {far}. "
                f"{_cause(trained, read, layers, dtype)}"
            )
    return worst


def check_proposals(found: Proposals, dtype: str) -> dict[str, Any]:
    """The account of it; RuntimeError when the engine's draft is not the trained one."""
    if not found.holds(dtype):
        raise RuntimeError(
            f"the engine's draft proposes other tokens than the trained one: {found.equal} of {found.compared} are "
            f"equal, {found.ties} of the others are ties, as all may be that differ in {dtype}. First: "
            f"{'; '.join(found.examples) or 'ties'}. The states are the same, so look at what conversion must keep: "
            "norm_before_residual, norm_before_fc, fc_norm, norm_output (vllm#38111, #46488), the order of the aux "
            "layers in fc, d2t, rope. check_checkpoint shows how vLLM reads each."
        )
    return {"proposals": found.compared, "equal": found.equal, "ties": found.ties}


def _cause(trained: np.ndarray, read: np.ndarray, layers: Sequence[int], dtype: str) -> str:
    order = [
        next(
            (other for j, other in enumerate(layers) if drift(trained[:, [j]], read[:, [i]])[0][0] <= NEAR[dtype]), None
        )
        for i in range(len(layers))
    ]
    if None not in order and order != list(layers):
        return f"Likely cause: it reads them in another order, {order} where training has {list(layers)}."
    return (
        f"Likely causes: the engine takes ids {list(layers)} for other layers, or default ones, since it does not find "
        "them in config.json (vllm#50170; actors/layer_ids.py has what each tool means by an id); the verifier is "
        "another one, or is quantized otherwise, than at extraction."
    )
