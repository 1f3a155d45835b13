"""The capture gate lets true states pass and stops each kind of false ones, with its name (a fake engine computes the
probabilities from the true states, by the verifier's own norm and lm_head)."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from actors import hf_forward
from actors.capture import Job, run_shard
from actors.capture_gate import CaptureGate, GateFailed, agreement, drift
from actors.engine import Completion, EngineSpec, Sampling
from actors.fake_engine import FakeEngine
from actors.hf_forward import HfForward
from actors.shard_gate import ShardGate, read_gates
from actors.shards import ShardMeta
from actors.verifier_head import VerifierHead, bf16_to_float
from conf.schema import EngineConfig, EngineKind
from tests.tiny import write_tiny_llama

LAYERS = (1, 2, 4)
META = ShardMeta(verifier="v", layers=LAYERS, hidden_size=128, engine="fake bfloat16", config_hash="c")
PROMPTS = ["What is a raven?", "Tell me of the sea and of ships.", "1 + 1", "Why does bread rise?"]
Change = Callable[[np.ndarray], np.ndarray]


def with_norm(folder: Path, seed: int) -> Path:
    """The verifier with another final norm: weights of one would hide a norm that is applied twice."""
    tensors = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(seed)
    tensors["model.norm.weight"] = (0.5 + 3 * torch.rand(128, generator=generator)).bfloat16()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_norm(write_tiny_llama(tmp_path_factory.mktemp("gate") / "verifier"), 0)


@pytest.fixture(scope="module")
def revision(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_norm(write_tiny_llama(tmp_path_factory.mktemp("gate") / "revision", seed=1), 1)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    rows = [
        {"sample": i, "id": str(i), "source": "ab"[i % 2], "messages": [{"role": "user", "content": text}]}
        for i, text in enumerate(PROMPTS)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "prompts.parquet")
    return Job(
        prompts=str(tmp_path / "prompts.parquet"),
        out=str(tmp_path),
        ranges=((0, 4),),
        sampling=Sampling(32),
        keep_truncated=True,
        max_model_len=256,
        meta=META,
        gate_samples=2,
        shown=(0, 1),
    )


class Faulty(FakeEngine):
    """States go through `change`: all of them, or only those of the first reading, which are kept."""

    change: Change = staticmethod(lambda states: states)
    only_kept = False

    async def generate(self, prompt_ids: list[int], sampling: Sampling, **options: Any) -> Completion:
        completion = await super().generate(prompt_ids, sampling, **options)
        if completion.hidden_states is None or (self.only_kept and "prompt_logprobs" in options):
            return completion
        return replace(completion, hidden_states=self.change(completion.hidden_states))


def engine(folder: Path, change: Change | None = None, *, only_kept: bool = False, layers: Any = LAYERS) -> Faulty:
    made = Faulty(EngineSpec(str(folder), EngineConfig(kind=EngineKind.fake), capture_layers=layers))
    made.change, made.only_kept = change or made.change, only_kept
    return made


def run(made: FakeEngine, job: Job, folder: Path, dtype: str = "bfloat16") -> None:
    gate = ShardGate(str(folder), dtype, META, job.gate_samples, job.shown)
    asyncio.run(run_shard(made, job, 0, gate=gate))


def refused(made: FakeEngine, job: Job, folder: Path, dtype: str = "bfloat16") -> str:
    with pytest.raises(GateFailed) as caught:
        run(made, job, folder, dtype)
    assert not list(Path(job.out).glob("part-*")), "nothing is committed that the gate refused"
    return str(caught.value)


def read(folder: Path) -> tuple[np.ndarray, Any]:
    """[T - 1, H] last states of a prompt, and what the engine gives to the tokens after them."""
    completion = asyncio.run(engine(folder).generate([*range(5, 65)], Sampling(1), capture=True, prompt_logprobs=4))
    return bf16_to_float(completion.hidden_states[:-1, -1]), completion.prompt_logprobs


def normed(states: np.ndarray, folder: Path) -> np.ndarray:
    """bf16 bits of the last layer's states after the final norm, in a copy."""
    changed = states.copy()
    last = VerifierHead(str(folder)).normed(bf16_to_float(states[:, -1]))
    changed[:, -1] = torch.from_numpy(last).bfloat16().view(torch.uint16).numpy()
    return changed


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_true_states_pass_and_the_account_says_how_near_they_are(job: Job, verifier: Path, dtype: str) -> None:
    run(engine(verifier), job, verifier, dtype)
    (seen,) = read_gates(Path(job.out), 1)
    assert len(seen["samples"]) == 2
    for sample in seen["samples"]:
        assert sample["agreement"]["entries"] > 20
        assert sample["agreement"]["of_bound"] < 1e-2  # the fake engine computes in float32 from the states as kept
        assert sample["drift"] == [0, 0, 0] and sample["far"] == [0, 0, 0]


def test_the_report_gets_the_first_and_the_last_supervised_token_of_each_answer(job: Job, verifier: Path) -> None:
    made = engine(verifier)
    run(made, job, verifier)
    (seen,) = read_gates(Path(job.out), 1)
    assert [(one["sample"], one["source"]) for one in seen["shown"]] == [(0, "a"), (1, "b")]
    for one in seen["shown"]:
        (turn,) = one["turns"]
        assert turn["before"].endswith("<assistant>") and turn["tokens"] > 1
        assert turn["first"] and turn["last"] == ""  # EOS has no text


def test_zeros(job: Job, verifier: Path) -> None:
    assert "layers [1, 2, 4]" in refused(engine(verifier, np.zeros_like), job, verifier)


def test_zeros_at_one_aux_layer(job: Job, verifier: Path) -> None:
    def clear(states: np.ndarray) -> np.ndarray:
        return np.where(np.arange(3)[None, :, None] == 1, np.uint16(0), states)

    assert "layers [2]" in refused(engine(verifier, clear), job, verifier)


def test_the_last_layer_off_by_one(job: Job, verifier: Path) -> None:
    message = refused(engine(verifier, layers=(1, 2, 3)), job, verifier)
    assert "Likely causes: layer 4 is not the last one" in message and "vllm#46973" in message


def test_the_final_norm_was_applied_already(job: Job, verifier: Path) -> None:
    message = refused(engine(verifier, lambda states: normed(states, verifier)), job, verifier)
    assert "through the final norm already" in message


def test_the_final_norm_is_not_applied_to_the_targets(verifier: Path) -> None:
    """speculators#313: a head without the norm does not give what the engine says."""
    last, said = read(verifier)
    head = VerifierHead(str(verifier))
    assert agreement(head, last, said, "bfloat16").holds
    assert not agreement(head, last, said, "bfloat16", lambda states: states).holds


@pytest.mark.parametrize("by, name", [(1, "late"), (-1, "early")])
def test_states_one_token_off(job: Job, verifier: Path, by: int, name: str) -> None:
    message = refused(engine(verifier, lambda states: np.roll(states, by, axis=0)), job, verifier)
    assert f"states lie one token {name}" in message
    message = refused(engine(verifier, lambda states: np.roll(states, by, axis=0), only_kept=True), job, verifier)
    assert f"what was kept lies one token {name}" in message


def test_states_of_another_sequence_of_the_batch(job: Job, verifier: Path) -> None:
    held: list[np.ndarray] = []

    def swap(states: np.ndarray) -> np.ndarray:
        held.append(states)
        return np.resize(held[len(held) - 2], states.shape)

    message = refused(engine(verifier, swap, only_kept=True), job, verifier)
    assert "mixed up requests of a batch" in message and "speculators#279" in message


def test_a_length_that_is_not_the_tokens(job: Job, verifier: Path) -> None:
    message = refused(engine(verifier, lambda states: states[3:], only_kept=True), job, verifier)
    assert "vllm#44485" in message and "prefix caching" in message


def test_another_revision_of_the_weights(job: Job, verifier: Path, revision: Path) -> None:
    message = refused(engine(revision), job, verifier)
    assert "the engine runs other weights" in message


def test_noise_as_of_a_subtly_wrong_layer_is_refused_though_the_likeliest_token_stays(verifier: Path) -> None:
    """vllm#50815: 96 % of the likeliest tokens were right, the mean error was 0.11 nats."""
    last, said = read(verifier)
    noise = np.random.default_rng(0).normal(size=last.shape).astype(np.float32)
    wrong = last + noise * np.abs(last) * 0.05
    head = VerifierHead(str(verifier))
    found = agreement(head, wrong, said, "bfloat16")
    assert not found.holds and found.mean_error < 0.2
    rounded = last * (1 + noise * 2**-8 / 3**0.5)  # what one rounding of bf16 does
    assert agreement(head, rounded, said, "bfloat16").holds


def test_a_hugging_face_forward_that_differs_at_one_aux_layer(verifier: Path) -> None:
    """What no probability tells: aux layers off by one, by the verifier's own states of the layers around them."""
    hf = HfForward(str(verifier), trust_remote_code=False)
    ids = list(range(5, 65))
    true, shifted = hf.states(ids, (1, 2, 4)), hf.states(ids, (1, 3, 4))
    head = VerifierHead(str(verifier))
    inputs = head.normed(bf16_to_float(true[:-1, -1]))
    tokens = head.likeliest(inputs, 4)
    values = head.predict(inputs, tokens).logprobs
    said = [dict(zip(*row, strict=True)) for row in zip(tokens.tolist(), values.tolist(), strict=True)]
    gate = CaptureGate(str(verifier), "bfloat16", LAYERS)
    seen = gate.judge(0, true, true, said, [], true)
    assert seen.from_hf == (0, 0, 0)
    with pytest.raises(GateFailed, match=r"gate.hf: .*units of that between tokens: layer 2: [\d.]+ \(at most"):
        gate.judge(0, shifted, shifted, said, [], true)


def test_a_verifier_that_does_not_fit_is_refused_with_what_it_takes(
    verifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hf_forward, "_available_bytes", lambda: 1000)
    with pytest.raises(ValueError, match=r"takes 0.0032 GiB, and this node has .* free. Set extract.gate.hf=false"):
        HfForward(str(verifier), trust_remote_code=False)


def test_drift_ignores_what_all_tokens_share() -> None:
    generator = np.random.default_rng(0)
    shared = 100 * generator.normal(size=(1, 1, 64))
    a, b = (shared + generator.normal(size=(50, 1, 64)) for _ in range(2))
    bits = [torch.from_numpy(x.astype(np.float32)).bfloat16().view(torch.uint16).numpy() for x in (a, b)]
    (median,), (far,) = drift(*map(bf16_to_float, bits))
    assert 1.0 < median < 2.0 and far == 1.0


def test_a_template_that_changed_since_the_answers_were_made(job: Job, verifier: Path) -> None:
    class Retold(FakeEngine):
        """Another system line at every other rendering."""

        told = 0

        async def render(self, messages: list[dict[str, str]]) -> list[int]:
            self.told += 1
            return [7, *await super().render(messages)] if self.told > len(PROMPTS) else await super().render(messages)

    made = Retold(EngineSpec(str(verifier), EngineConfig(kind=EngineKind.fake), capture_layers=LAYERS))
    message = refused(made, job, verifier)
    assert re.search(r"sample 0 of a: the engine's chat template gives \d+ tokens before answer 1", message)
    assert "from token 0 on" in message


def test_the_head_is_that_of_the_model(verifier: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(verifier, dtype=torch.float32).eval()
    ids = torch.randint(3, 500, (1, 40), generator=torch.Generator().manual_seed(0))
    before: dict[str, torch.Tensor] = {}
    model.model.norm.register_forward_hook(lambda _, args, __: before.update(x=args[0]))
    with torch.no_grad():
        expected = torch.log_softmax(model(ids).logits[0], -1)
    head = VerifierHead(str(verifier))
    inputs = head.normed(before["x"][0].numpy())
    tokens = head.likeliest(inputs, 5)
    assert tokens.tolist() == expected.topk(5).indices.tolist()
    found = head.predict(inputs, tokens).logprobs
    assert np.allclose(found, expected.gather(-1, torch.from_numpy(tokens)).numpy(), atol=1e-4)
