"""The acceptance that a draft will have, from the trainer's own forward pass over finished conversations.

Greedy speculation is deterministic: at each anchor the draft proposes K tokens, the verifier accepts those that equal
what it wrote, adds one of its own, and the next anchor follows. The trainer's forward with teacher forcing computes
exactly these proposals, for every anchor at once; replaying the anchors gives the engine's counters without an engine.
A difference means that engine and trainer run different drafts.
"""

from typing import Any

import torch

from actors.engine import SpecCounters
from actors.shards import SampleStates


@torch.no_grad()
def proposals(model: Any, sample: SampleStates, steps: int) -> torch.Tensor:
    """[steps, T - 1] verifier token ids that speculators' draft `model` proposes from each anchor of a sample.

    Entry [s, i] is for token i + 2 + s: anchor i has read the state of token i and the embedding of token i + 1.
    """
    weight = model.fc.weight
    states = torch.from_numpy(sample.hidden_states.copy()).view(torch.bfloat16).to(weight.device, weight.dtype)
    ids = torch.from_numpy(sample.token_ids.copy()).long().to(weight.device)
    length = len(ids) - 1
    drafted = model(
        hidden_states=states[:-1, :-1].flatten(1)[None],
        input_ids=ids[None, 1:],
        document_ids=torch.zeros(1, length, dtype=torch.long, device=weight.device),
        position_ids=torch.arange(1, length + 1, device=weight.device)[None],
        ttt_steps=steps,
    )
    tokens = torch.cat(drafted)
    return tokens if model.d2t is None else tokens + model.d2t[tokens]


def replay(proposed: torch.Tensor, token_ids: torch.Tensor, prompt: int, output_tokens: int) -> SpecCounters:
    """Counters of an engine that answers a prompt of `prompt` tokens with `output_tokens` tokens of `token_ids`.

    `token_ids` must reach `steps` tokens beyond the answer for its last drafts to be judged.
    """
    steps = len(proposed)
    if prompt + output_tokens + steps > len(token_ids) + 1:
        raise ValueError(f"{len(token_ids)} tokens are too few for {prompt} + {output_tokens} and {steps} draft tokens")
    written, drafts = 1, 0  # the verifier writes the first token alone
    accepted = [0] * steps
    while written < output_tokens:
        anchor = prompt + written - 2
        wanted = token_ids[anchor + 2 : anchor + 2 + steps]
        hits = int((proposed[:, anchor] == wanted).long().cumprod(0).sum())
        drafts += 1
        for position in range(hits):
            accepted[position] += 1
        written += hits + 1
    return SpecCounters(drafts, drafts * steps, sum(accepted), tuple(accepted))
