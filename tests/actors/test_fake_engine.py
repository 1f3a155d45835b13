"""The fake engine keeps the Engine protocol's promises."""

import asyncio
import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.draft_formats import write_flat, write_speculators
from actors.engine import Completion, DraftSpec, EngineDead, EngineSpec, Sampling
from actors.fake_engine import FakeEngine
from actors.verifier import read_verifier
from conf.schema import EngineConfig, EngineKind, Naming
from tests.tiny_draft import rewrite_tensors, write_tiny_draft

LAYERS = (1, 2, 4)
PROMPT = list(range(40, 60))


def spec_of(
    verifier: Path, *, max_model_len: int = 256, extra: dict[str, Any] | None = None, **more: Any
) -> EngineSpec:
    config = EngineConfig(kind=EngineKind.fake, max_model_len=max_model_len, extra=extra or {})
    return EngineSpec(str(verifier), config, **more)


def answer(engine: FakeEngine, sampling: Sampling, *, prompt: list[int] = PROMPT, capture: bool = False) -> Completion:
    return asyncio.run(engine.generate(prompt, sampling, capture=capture))


def captured(engine: FakeEngine, prompt: list[int], max_new_tokens: int = 1) -> tuple[Completion, np.ndarray]:
    """The completion and its states [T, L, H]."""
    completion = answer(engine, Sampling(max_new_tokens), prompt=prompt, capture=True)
    assert completion.hidden_states is not None
    return completion, completion.hidden_states


@pytest.fixture
def drafts(tiny_llama: Path, tmp_path: Path) -> Path:
    """Folder with draft/, speculators/ and flat/."""
    write_tiny_draft(tmp_path / "draft", tiny_llama)
    write_speculators(tmp_path / "draft", read_verifier(tiny_llama), tmp_path / "speculators", 3)
    write_flat(tmp_path / "draft", read_verifier(tiny_llama), tmp_path / "flat", Naming.midlayer, 3)
    return tmp_path


def with_draft(verifier: Path, draft: Path, tokens: int = 3, **more: Any) -> FakeEngine:
    return FakeEngine(spec_of(verifier, draft=DraftSpec(str(draft), tokens), **more))


def test_rendered_messages_decode_to_their_text_and_fit_the_vocabulary(tiny_llama: Path) -> None:
    engine = FakeEngine(spec_of(tiny_llama))
    messages = [{"role": "system", "content": "Brief."}, {"role": "user", "content": "Où niche l'aigle ?"}]
    ids = asyncio.run(engine.render(messages))
    assert asyncio.run(engine.decode(ids)) == "<system>Brief.\n<user>Où niche l'aigle ?\n<assistant>"
    assert min(ids) >= 0 and max(ids) < 512


def test_same_prompt_same_answer_in_any_engine(tiny_llama: Path) -> None:
    first = answer(FakeEngine(spec_of(tiny_llama)), Sampling(max_new_tokens=40))
    again = answer(FakeEngine(spec_of(tiny_llama)), Sampling(max_new_tokens=40))
    other = answer(FakeEngine(spec_of(tiny_llama)), Sampling(max_new_tokens=40), prompt=[41, *PROMPT[1:]])
    assert first == again
    assert first.output_ids != other.output_ids


def test_seed_matters_only_when_sampling(tiny_llama: Path) -> None:
    engine = FakeEngine(spec_of(tiny_llama))
    greedy = [answer(engine, Sampling(30, seed=seed)).output_ids for seed in (0, 1)]
    sampled = [answer(engine, Sampling(30, temperature=1.0, seed=seed)).output_ids for seed in (0, 1, 1)]
    assert greedy[0] == greedy[1] and sampled[1] == sampled[2]
    assert sampled[0] != sampled[1]


def test_an_answer_ends_in_eos_or_at_the_limit(tiny_llama: Path) -> None:
    engine = FakeEngine(spec_of(tiny_llama))
    whole = answer(engine, Sampling(100))
    assert whole.finish_reason == "stop" and whole.output_ids[-1] == 2 and 2 not in whole.output_ids[:-1]
    cut = answer(engine, Sampling(len(whole.output_ids) - 1))
    assert cut.finish_reason == "length" and cut.output_ids == whole.output_ids[:-1]
    longer = answer(engine, Sampling(100, ignore_eos=True))
    assert longer.finish_reason == "length" and len(longer.output_ids) == 100 and 2 not in longer.output_ids


def test_states_are_the_same_whether_generated_or_prefilled(tiny_llama: Path) -> None:
    engine = FakeEngine(spec_of(tiny_llama, capture_layers=LAYERS))
    written, states = captured(engine, PROMPT, 12)
    whole = written.prompt_ids + written.output_ids
    assert states.shape == (len(whole) - 1, len(LAYERS), 128)
    assert states.dtype == np.uint16
    assert np.array_equal(states, captured(engine, whole[:-1])[1])


def test_states_tell_layers_and_prefixes_apart_and_are_bf16(tiny_llama: Path) -> None:
    engine = FakeEngine(spec_of(tiny_llama, capture_layers=LAYERS))
    states = captured(engine, [50, 51, 50, 51])[1]
    values = (states.astype(np.uint32) << 16).view(np.float32)
    assert np.isfinite(values).all() and np.abs(values).max() <= 1 and values.std() > 0.3
    assert not np.array_equal(states[:, 0], states[:, 1])
    assert not np.array_equal(states[1], states[3])  # same token, other prefix
    narrower = FakeEngine(spec_of(tiny_llama, capture_layers=(4,)))
    last = captured(narrower, [50, 51, 50, 51])[1]
    assert np.array_equal(last[:, 0], states[:, 2])  # a layer's states do not depend on which others are captured


def test_context_limit(tiny_llama: Path) -> None:
    engine = FakeEngine(spec_of(tiny_llama, max_model_len=len(PROMPT) + 3))
    cut = answer(engine, Sampling(100))
    assert cut.finish_reason == "length" and len(cut.output_ids) == 3
    with pytest.raises(ValueError, match="engine.max_model_len"):
        answer(engine, Sampling(1), prompt=PROMPT + [1, 2, 3])


def test_ids_outside_the_vocabulary_are_refused(tiny_llama: Path) -> None:
    with pytest.raises(ValueError, match="vocabulary of 512"):
        answer(FakeEngine(spec_of(tiny_llama)), Sampling(1), prompt=[512])


def test_both_formats_of_a_draft_count_the_same(tiny_llama: Path, drafts: Path) -> None:
    plain = answer(FakeEngine(spec_of(tiny_llama)), Sampling(60, ignore_eos=True))
    counted = []
    for name in ("speculators", "flat"):
        engine = with_draft(tiny_llama, drafts / name)
        assert answer(engine, Sampling(60, ignore_eos=True)) == plain  # a draft changes speed, never tokens
        counted.append(engine.counters())
    assert counted[0] == counted[1]
    found = counted[0]
    assert found.draft_tokens == 3 * found.drafts and found.accepted == sum(found.accepted_per_position)
    assert 0 < found.accepted < found.draft_tokens
    assert 60 - 1 <= found.drafts + found.accepted < 60 + 3  # the last draft may overshoot the limit


def test_a_flag_or_a_weight_that_differs_changes_acceptance(tiny_llama: Path, drafts: Path) -> None:
    def counters(folder: Path) -> Any:
        engine = with_draft(tiny_llama, folder)
        answer(engine, Sampling(100, ignore_eos=True))
        return engine.counters()

    trained = counters(drafts / "flat")
    config = drafts / "flat" / "config.json"
    original = config.read_text()
    config.write_text(json.dumps(json.loads(original) | {"norm_before_residual": False}))
    assert counters(drafts / "flat") != trained
    config.write_text(original)
    assert counters(drafts / "flat") == trained
    rewrite_tensors(drafts / "flat", lambda tensors: tensors["fc.weight"].neg_())
    assert counters(drafts / "flat") != trained


@pytest.mark.parametrize("tensor", ["lm_head.weight", "input_norm.weight", "fc.weight"])
def test_a_draft_without_a_tensor_does_not_load(tensor: str, tiny_llama: Path, drafts: Path) -> None:
    rewrite_tensors(drafts / "speculators", lambda tensors: tensors.pop(tensor))
    with pytest.raises(ValueError, match=f"{tensor}.*missing"):
        with_draft(tiny_llama, drafts / "speculators")


def test_four_aux_layers_that_vllm_would_take_for_three_do_not_load(tiny_llama: Path, tmp_path: Path) -> None:
    write_tiny_draft(tmp_path / "draft", tiny_llama, aux_layers=[1, 2, 3, 4])
    with pytest.raises(ValueError, match=r"fc.weight +\[128, 512\] +\[128, 384\]"):
        with_draft(tiny_llama, tmp_path / "draft")


def test_a_draft_of_another_verifier_does_not_load(tiny_llama: Path, drafts: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny_llama, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    with pytest.raises(ValueError, match="aux layers"):
        with_draft(other, drafts / "flat")


def test_latency_is_that_of_passes_so_a_draft_is_faster(tiny_llama: Path, drafts: Path) -> None:
    def seconds(engine: FakeEngine) -> float:
        begin = time.perf_counter()
        answer(engine, Sampling(60, ignore_eos=True))
        return time.perf_counter() - begin

    extra = {"seconds_per_token": 0.002}
    plain = seconds(FakeEngine(spec_of(tiny_llama, extra=extra)))
    assert plain >= 60 * 0.002
    assert seconds(with_draft(tiny_llama, drafts / "flat", extra=extra)) < plain


def test_the_chosen_token_kills_the_engine(tiny_llama: Path) -> None:
    engine = FakeEngine(spec_of(tiny_llama, extra={"die_on_token": 45}))
    with pytest.raises(EngineDead):
        answer(engine, Sampling(1))
    assert answer(engine, Sampling(1), prompt=[3, 4]).output_ids
