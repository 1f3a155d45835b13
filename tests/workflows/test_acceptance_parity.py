"""Predicted against measured acceptance: the same and chance pass, another draft is refused with what to check."""

import random

import pytest

from workflows.acceptance_parity import parity, refusal

K = 3


def drawn(rate: float, conversations: int, seed: int, steps: int = 40) -> dict[int, list[int]]:
    """Accepted tokens of each step, each position right with `rate`."""
    chance = random.Random(seed)

    def step() -> int:
        right = 0
        while right < K and chance.random() < rate:
            right += 1
        return right

    return {sample: [step() for _ in range(steps)] for sample in range(conversations)}


def test_equal_steps_are_equal_to_the_digit() -> None:
    steps = drawn(0.4, 12, 0)
    found = parity(steps, steps, K)
    assert found.holds and found.length_apart == (0, 0) and found.first_apart == (0, 0)
    assert found.predicted == found.measured and found.conversations == 12
    low, high = found.predicted.interval
    assert low < found.predicted.acceptance_length < high
    total = sum(map(sum, steps.values()))
    assert found.predicted.acceptance_length == pytest.approx(1 + total / (12 * 40))
    assert found.predicted.per_position[0] == sum(s > 0 for one in steps.values() for s in one) / (12 * 40)


def test_two_draws_of_the_same_draft_pass() -> None:
    for seed in range(20):
        assert parity(drawn(0.4, 80, seed), drawn(0.4, 80, 100 + seed), K).holds


def test_a_draft_that_lost_a_tenth_of_its_first_tokens_is_refused_with_what_to_check() -> None:
    found = parity(drawn(0.5, 80, 1), drawn(0.42, 80, 1), K)
    assert not found.holds and found.first_apart[1] < -0.02
    message = refusal(found)
    assert "80 held-out conversations" in message and "draft gate" in message and "aux layers" in message


def test_a_few_conversations_cannot_tell_a_small_difference() -> None:
    """A bootstrap over three conversations believes too much in them."""
    found = parity(drawn(0.5, 3, 1, steps=10), drawn(0.45, 3, 2, steps=10), K)
    assert found.holds and found.length_apart[1] < -0.03


def test_a_flag_lost_shows_in_later_positions_alone() -> None:
    predicted = drawn(0.5, 80, 1)
    measured = {sample: [min(step, 1) for step in steps] for sample, steps in predicted.items()}
    found = parity(predicted, measured, K)
    assert found.first_apart == (0, 0) and not found.holds and found.length_apart[1] < -0.03


def test_only_conversations_that_both_have_count() -> None:
    predicted, measured = drawn(0.5, 4, 1), drawn(0.5, 6, 2)
    assert parity(predicted, measured, K).conversations == 4
    with pytest.raises(ValueError, match="long enough"):
        parity({1: [], 2: []}, {1: [], 2: []}, K)
    with pytest.raises(ValueError, match="long enough"):
        parity({1: [1]}, {2: [1]}, K)
