"""Speculation over a known text: which steps there are, how they end, and which of an engine's own can be judged."""

import random

from actors.engine import SpecCounters
from actors.speculation import Answer, accepted_steps, counters, judged_steps


def perfect(tokens: int, longest: int = 8) -> Answer:
    return Answer(tokens, tuple(min(longest, tokens - written) for written in range(1, tokens)))


def test_a_perfect_draft_gains_k_tokens_each_time() -> None:
    # 1 token alone, then 4 at a time: 1, 5, 9, and from 13 on no whole step fits into 15
    assert accepted_steps(perfect(15), 3) == [3, 3, 3]
    assert counters([3, 3, 3], 3) == SpecCounters(3, 9, 9, (3, 3, 3))


def test_a_wrong_draft_costs_one_pass_a_token() -> None:
    assert accepted_steps(Answer(8, (0,) * 7), 3) == [0] * 5
    assert counters([0] * 5, 3) == SpecCounters(5, 15, 0, (0, 0, 0))


def test_the_next_step_begins_behind_the_first_wrong_token() -> None:
    # after 1 token, one right: 3 written; the place after 2 is never asked
    assert accepted_steps(Answer(8, (1, 0, 2, 0, 0, 0, 0)), 2) == [1, 2, 0]
    assert counters([1, 2, 0], 2) == SpecCounters(3, 6, 3, (2, 1))


def test_fewer_draft_tokens_than_were_judged() -> None:
    answer = Answer(12, (5, 4, 3, 2, 1, 0, 4, 3, 2, 1, 0))
    assert accepted_steps(answer, 1) == [1, 1, 1, 1, 1, 0]
    assert accepted_steps(answer, 5) == [5, 4]


def test_an_answer_too_short_for_a_step_has_none() -> None:
    assert accepted_steps(perfect(3), 3) == [] and counters([], 3) == SpecCounters(0, 0, 0, (0, 0, 0))


def test_an_engine_that_runs_the_same_draft_is_judged_on_the_same_steps() -> None:
    chance = random.Random(0)
    for _ in range(200):
        known, k = chance.randrange(2, 40), chance.randrange(1, 6)
        answer = Answer(known, tuple(min(chance.randrange(9), known - w) for w in range(1, known)))
        # the engine goes on where the text is known to it alone: one more token, and steps that reach beyond it
        engine, written = accepted_steps(answer, k), 0
        written = 1 + sum(one + 1 for one in engine)
        while written < known + 1:
            engine.append(chance.randrange(k + 1))
            written += engine[-1] + 1
        assert judged_steps(engine, known, k) == accepted_steps(answer, k)
