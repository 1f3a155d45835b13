"""The acceptance that a draft will have, from the trainer's own forward pass over finished conversations.

With teacher forcing the forward computes, for every place at once, what the draft proposes there given that what it
proposed so far was right; a wrong token ends a step, so no more is needed. actors/speculation.py replays the steps. A
difference to an engine's counters means that engine and trainer run different drafts.
"""

from collections.abc import Iterator
from typing import Any

import torch

from actors.speculation import Answer

Row = dict[str, Any]  # packed conversations as speculators' collate function makes them, shifted: [1, n, ...]


@torch.no_grad()
def proposals(model: Any, row: Row, steps: int) -> torch.Tensor:
    """[steps, n] verifier token ids that speculators' draft `model` proposes at each place of a packed row.

    Entry [s, i] is for the token s + 1 places behind input i: place i has read a state and the embedding of the token
    after it, and `input_ids` are those tokens.
    """
    device = model.fc.weight.device
    drafted = model(
        hidden_states=row["hidden_states"].to(device),
        input_ids=row["input_ids"].to(device),
        document_ids=row["document_ids"].to(device),
        position_ids=row["position_ids"].to(device),
        ttt_steps=steps,
    )
    tokens = torch.cat(drafted)
    return (tokens if model.d2t is None else tokens + model.d2t[tokens]).cpu()


def answers(row: Row, proposed: torch.Tensor, conversations: int) -> Iterator[Answer | None]:
    """The first answer of each conversation in the row, in order; None of one that has no supervised token in it."""
    documents, ids, mask = (row[key][0] for key in ("document_ids", "input_ids", "loss_mask"))
    for document in range(conversations):
        places = (documents == document).nonzero()[:, 0]
        yield _answer(ids[places], mask[places].bool(), proposed[:, places])


def _answer(ids: torch.Tensor, mask: torch.Tensor, proposed: torch.Tensor) -> Answer | None:
    if not mask.any():
        return None
    begin = int(mask.long().argmax())
    tokens = int(mask[begin:].long().cumprod(0).sum())
    text = ids[begin : begin + tokens]
    hits = []
    for written in range(1, tokens):
        wanted = text[written : written + len(proposed)]
        right = proposed[: len(wanted), begin + written - 1] == wanted
        hits.append(int(right.long().cumprod(0).sum()))
    return Answer(tokens, tuple(hits))
