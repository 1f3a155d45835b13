"""Conversations answered turn by turn: which tokens are the verifier's, and when a conversation ends early."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.engine import Completion, EngineSpec, Message, Sampling
from actors.fake_engine import FakeEngine
from actors.rollout import Rollout, roll_out
from conf.schema import EngineConfig, EngineKind

SYSTEM = {"role": "system", "content": "Brief."}
FIRST = {"role": "user", "content": "Where does an eagle nest?"}
SECOND = {"role": "user", "content": "And how high?"}
THIRD = {"role": "user", "content": "Why?"}
LONG = Sampling(max_new_tokens=64)


class Recording(FakeEngine):
    """Keeps its completions and what was asked of them."""

    def __init__(self, spec: EngineSpec):
        super().__init__(spec)
        self.seen: list[tuple[Completion, Sampling]] = []

    async def generate(self, prompt_ids: list[int], sampling: Sampling, **options: Any) -> Completion:
        completion = await super().generate(prompt_ids, sampling, **options)
        self.seen.append((completion, sampling))
        return completion


class Rewriting(Recording):
    """A template that drops earlier answers, as templates of reasoning models do."""

    async def render(self, messages: list[Message]) -> list[int]:
        return await super().render([m for m in messages if m["role"] != "assistant"])


def engine_of(verifier: Path, kind: type[Recording] = Recording, **more: Any) -> Recording:
    return kind(EngineSpec(str(verifier), EngineConfig(kind=EngineKind.fake), **more))


def rolled(
    engine: FakeEngine,
    *messages: Message,
    sampling: Sampling = LONG,
    max_model_len: int = 2048,
    capture: bool = False,
) -> Rollout:
    found = asyncio.run(roll_out(engine, list(messages), sampling, max_model_len=max_model_len, capture=capture))
    assert found is not None
    return found


def test_one_turn_is_the_prompt_and_the_answer_with_its_eos(tiny_llama: Path) -> None:
    engine = engine_of(tiny_llama)
    found = rolled(engine, SYSTEM, FIRST)
    prompt = asyncio.run(engine.render([SYSTEM, FIRST]))
    answer = engine.seen[0][0].output_ids
    assert found.token_ids.dtype == np.int32 and found.token_ids.tolist() == prompt + answer
    assert found.loss_mask.tolist() == [False] * len(prompt) + [True] * len(answer)
    assert answer[-1] == 2 and (found.finish_reason, found.turns) == ("stop", 1)
    assert found.hidden_states is None


def test_every_turn_is_answered_and_the_mask_marks_the_verifiers_tokens_only(tiny_llama: Path) -> None:
    engine = engine_of(tiny_llama)
    found = rolled(engine, FIRST, SECOND, THIRD)
    assert found.turns == len(engine.seen) == 3
    expected_ids: list[int] = []
    expected_mask: list[bool] = []
    for completion, _ in engine.seen:
        assert completion.prompt_ids[: len(expected_ids)] == expected_ids  # each turn extends the one before
        expected_mask += [False] * (len(completion.prompt_ids) - len(expected_ids))
        expected_mask += [True] * len(completion.output_ids)
        expected_ids = completion.prompt_ids + completion.output_ids
    assert found.token_ids.tolist() == expected_ids and found.loss_mask.tolist() == expected_mask


def test_states_are_those_of_every_token_but_the_last(tiny_llama: Path) -> None:
    engine = engine_of(tiny_llama, capture_layers=(1, 4))
    found = rolled(engine, FIRST, SECOND, capture=True)
    assert found.turns == 2 and found.hidden_states is not None
    assert found.hidden_states.shape == (len(found.token_ids) - 1, 2, 128)
    whole = asyncio.run(engine.generate(found.token_ids[:-1].tolist(), Sampling(1), capture=True)).hidden_states
    assert np.array_equal(found.hidden_states, whole)


def test_a_template_that_rewrites_history_ends_the_conversation_before_that_turn(tiny_llama: Path) -> None:
    whole = rolled(engine_of(tiny_llama), FIRST)
    found = rolled(engine_of(tiny_llama, Rewriting), FIRST, SECOND)
    assert found.turns == 1
    assert found.token_ids.tolist() == whole.token_ids.tolist()
    assert found.loss_mask.tolist() == whole.loss_mask.tolist()


def test_a_first_turn_that_leaves_no_room_gives_nothing_and_asks_nothing(tiny_llama: Path) -> None:
    engine = engine_of(tiny_llama)
    prompt = len(asyncio.run(engine.render([FIRST])))

    def tried(max_model_len: int) -> Rollout | None:
        return asyncio.run(roll_out(engine, [FIRST], LONG, max_model_len=max_model_len, capture=False))

    assert tried(prompt + 64) is None and engine.seen == []
    assert tried(prompt + 64 + 1) is not None


def test_a_later_turn_that_leaves_no_room_is_left_out(tiny_llama: Path) -> None:
    engine = engine_of(tiny_llama)
    room = len(asyncio.run(engine.render([FIRST]))) + 64 + 1
    found = rolled(engine, FIRST, SECOND, max_model_len=room)
    assert found.turns == 1 and found.finish_reason == "stop"


def test_a_cut_answer_ends_the_conversation(tiny_llama: Path) -> None:
    engine = engine_of(tiny_llama)
    found = rolled(engine, FIRST, SECOND, sampling=Sampling(max_new_tokens=3))
    assert (found.turns, found.finish_reason, int(found.loss_mask.sum())) == (1, "length", 3)
    assert len(engine.seen) == 1


@pytest.mark.parametrize(("seed", "seeds"), [(7, [7, 8, 9]), (None, [None, None, None])])
def test_every_turn_has_a_seed_of_its_own(tiny_llama: Path, seed: int | None, seeds: list[int | None]) -> None:
    engine = engine_of(tiny_llama)
    rolled(engine, FIRST, SECOND, THIRD, sampling=Sampling(64, temperature=1.0, seed=seed))
    assert [sampling.seed for _, sampling in engine.seen] == seeds
