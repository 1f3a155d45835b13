"""What a draft proposes over packed conversations, and what of it is right."""

from typing import Any

import pytest
import torch

from actors.predicted_acceptance import answers, proposals
from actors.speculation import Answer


def packed(*conversations: tuple[list[int], list[int]], pad: int = 3) -> dict[str, torch.Tensor]:
    """A row of (token ids, loss mask), shifted as speculators does: token 0 of each is gone."""
    ids = [ids[1:] for ids, _ in conversations]
    masks = [mask[1:] for _, mask in conversations]
    documents = [[number] * len(one) for number, one in enumerate(ids)]
    flat = {
        "input_ids": sum(ids, []) + [0] * pad,
        "loss_mask": sum(masks, []) + [0] * pad,
        "document_ids": sum(documents, []) + [-1] * pad,
        "position_ids": [place + 1 for one in ids for place in range(len(one))] + [0] * pad,
    }
    row = {key: torch.tensor([values]) for key, values in flat.items()}
    return row | {"hidden_states": torch.zeros(1, len(flat["input_ids"]), 6)}


class Draft(torch.nn.Module):
    """Honours the call of speculators' model; proposes the token that follows in the row, but for `wrong` places."""

    def __init__(self, d2t: torch.Tensor | None = None, wrong: Any = ()) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(1, 1)
        self.d2t, self.wrong = d2t, wrong

    def forward(
        self,
        hidden_states: torch.Tensor,
        input_ids: torch.Tensor,
        document_ids: torch.Tensor,
        position_ids: torch.Tensor,
        ttt_steps: int,
    ) -> list[torch.Tensor]:
        assert hidden_states.shape[:2] == input_ids.shape == document_ids.shape == position_ids.shape
        drafted = [torch.roll(input_ids, -1 - step, 1) for step in range(ttt_steps)]
        for step, place in self.wrong:
            drafted[step][0, place] += 1
        return drafted


FIRST = ([9, 10, 11, 12, 13, 14], [0, 0, 1, 1, 1, 1])  # two prompt tokens, four of the verifier
SECOND = ([9, 20, 21, 22, 23, 24], [0, 0, 0, 1, 1, 0])
ROW = packed(FIRST, SECOND)


def test_a_right_draft_is_right_up_to_the_end_of_what_is_known() -> None:
    found = list(answers(ROW, proposals(Draft(), ROW, 3), 2))
    assert found == [Answer(4, (3, 2, 1)), Answer(2, (1,))]


def test_nothing_counts_behind_the_first_wrong_token() -> None:
    # shifted, the first answer begins at place 1: after one written token the draft is asked there
    found = next(answers(ROW, proposals(Draft(wrong=[(1, 1), (0, 2)]), ROW, 3), 2))
    assert found == Answer(4, (1, 0, 1))


def test_proposals_are_in_the_verifiers_vocabulary() -> None:
    plain, mapped = (proposals(Draft(d2t), ROW, 2) for d2t in (None, torch.full((30,), 100)))
    assert torch.equal(mapped, plain + 100) and plain.shape == (2, 13)


def test_a_conversation_without_an_answer_has_none_and_only_the_first_one_counts() -> None:
    row = packed(([1, 2, 3], [0, 0, 0]), ([1, 2, 3, 4, 5, 6, 7], [0, 1, 1, 0, 0, 1, 1]))
    found = list(answers(row, proposals(Draft(), row, 2), 2))
    assert found == [None, Answer(2, (1,))]


@pytest.mark.parametrize("steps", [1, 4])
def test_a_draft_is_asked_for_as_many_tokens_as_it_is_told(steps: int) -> None:
    assert max(next(answers(ROW, proposals(Draft(), ROW, steps), 2)).hits) == min(steps, 3)
