"""Replaying a draft's proposals gives the counters that an engine would have."""

import numpy as np
import pytest
import torch

from actors.engine import SpecCounters
from actors.predicted_acceptance import proposals, replay
from actors.shards import SampleStates

IDS = torch.arange(100, 130)  # prompt of 5 tokens, then the verifier's


def right_everywhere(steps: int) -> torch.Tensor:
    """Entry [s, i] is token i + 2 + s; beyond the end, nothing is right."""
    padded = torch.cat([IDS, torch.full((steps + 2,), -1)])
    return torch.stack([padded[2 + s : 2 + s + len(IDS) - 1] for s in range(steps)])


def test_a_perfect_draft_gains_k_tokens_each_time() -> None:
    # 1 token alone, then 4 at a time: 1, 5, 9, 13
    assert replay(right_everywhere(3), IDS, 5, 13) == SpecCounters(3, 9, 9, (3, 3, 3))
    # the last draft may reach beyond the answer; an engine counts it whole
    assert replay(right_everywhere(3), IDS, 5, 11) == SpecCounters(3, 9, 9, (3, 3, 3))


def test_a_wrong_draft_costs_one_pass_a_token() -> None:
    assert replay(right_everywhere(3) + 1, IDS, 5, 8) == SpecCounters(7, 21, 0, (0, 0, 0))


def test_nothing_counts_behind_the_first_wrong_token_and_the_next_anchor_is_behind_it() -> None:
    proposed = right_everywhere(3)
    first = 5 + 1 - 2  # the anchor that has read the last prompt token and the first answer token
    proposed[1, first] = -1
    # 1 token, then 1 accepted + 1 of the verifier (3 written), then 3 + 1
    assert replay(proposed, IDS, 5, 7) == SpecCounters(2, 6, 4, (2, 1, 1))
    skipped = right_everywhere(3)
    skipped[:, first + 1] = -1  # an anchor that is never used
    assert replay(skipped, IDS, 5, 9) == SpecCounters(2, 6, 6, (2, 2, 2))


def test_too_few_tokens_to_judge_the_last_draft() -> None:
    with pytest.raises(ValueError, match="30 tokens are too few for 5 \\+ 24 and 3"):
        replay(right_everywhere(3), IDS, 5, 24)


class Draft(torch.nn.Module):
    """Honours the call of speculators' model: proposes ids that tell what it was given."""

    def __init__(self, d2t: torch.Tensor | None) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(1, 1)
        self.d2t = d2t

    def forward(
        self,
        hidden_states: torch.Tensor,
        input_ids: torch.Tensor,
        document_ids: torch.Tensor,
        position_ids: torch.Tensor,
        ttt_steps: int,
    ) -> list[torch.Tensor]:
        assert hidden_states.shape == (1, 3, 6) and hidden_states[0, :, 0].tolist() == [0, 1, 2]
        assert input_ids.tolist() == [[11, 12, 13]] and position_ids.tolist() == [[1, 2, 3]]
        assert document_ids.tolist() == [[0, 0, 0]]
        return [torch.full((1, 3), step) for step in range(ttt_steps)]


@pytest.mark.parametrize(("d2t", "expected"), [(None, [0, 1]), (torch.tensor([7, 8]), [7, 9])])
def test_the_draft_reads_state_i_beside_token_i_plus_one(d2t: torch.Tensor | None, expected: list[int]) -> None:
    states = torch.arange(4).repeat_interleave(4 * 2).reshape(4, 4, 2).to(torch.bfloat16)  # three aux layers, the last
    sample = SampleStates(0, np.arange(10, 14, dtype=np.int32), np.ones(4, bool), states.view(torch.uint16).numpy())
    assert proposals(Draft(d2t), sample, 2).tolist() == [[expected[0]] * 3, [expected[1]] * 3]
