"""The real vLLM on a tiny random Llama: what is captured is what the model computed, one engine for the whole file."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from actors.capture import Job, run_shard
from actors.capture_gate import CaptureGate, GateFailed
from actors.engine import EngineSpec, Sampling
from actors.hf_forward import HfForward
from actors.responses import Response, commit_responses
from actors.shard_gate import ShardGate, read_gates
from actors.shards import ShardMeta, read_samples
from actors.start_engine import start
from actors.verifier import read_verifier
from conf.schema import EngineConfig, EngineKind
from workflows.prompt_table import PromptRow, write_prompts

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

LAYERS = (1, 2, 3, 4)  # of 4: three aux layers and the last
# fp32: greedy ties aside, a test may then ask for equal tokens and for states equal to rounding
CONFIG = EngineConfig(
    kind=EngineKind.vllm,
    dtype="float32",
    max_model_len=256,
    max_num_seqs=8,
    max_num_batched_tokens=64,  # smaller than the prompts: prefill comes in chunks
    kv_cache_gib=0.25,
    enforce_eager=True,
    num_gpus=0,
    env={"HF_HUB_OFFLINE": "1"},
)
PROMPTS = [
    "What is a raven?",
    "Tell me of the sea, of ships, of storms and of the people who wait ashore. " * 2,
    "1 + 1",
    "Why?",
]


class Held:
    """The engine and the one event loop that it lives in."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.loop = asyncio.new_event_loop()
        self.engine = start(EngineSpec(str(folder), CONFIG, capture_layers=LAYERS))

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)


@pytest.fixture(scope="module")
def held(tiny_llama: Path) -> Iterator[Held]:
    held = Held(tiny_llama)
    yield held
    transfer = held.engine._transfer
    held.engine.close()
    assert not transfer.exists()


def as_float(bits: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(bits.copy()).view(torch.bfloat16).float()


def reference(folder: Path, ids: list[int]) -> torch.Tensor:
    """[T, L, H] residual streams of Hugging Face's forward; the last one before the final norm."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    before_norm = {}
    model.model.norm.register_forward_hook(lambda _, args, __: before_norm.update(x=args[0]))
    with torch.no_grad():
        states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    return torch.stack([states[layer][0] for layer in LAYERS[:-1]] + [before_norm["x"][0]], dim=1)


def test_captured_states_are_those_of_the_model_for_every_request_of_a_batch(held: Held) -> None:
    async def all_of_them() -> list[Any]:
        prompts = [await held.engine.render([{"role": "user", "content": text}]) for text in PROMPTS]
        return await asyncio.gather(*(held.engine.generate(p, Sampling(12), capture=True) for p in prompts))

    for completion in held.run(all_of_them()):
        ids = [*completion.prompt_ids, *completion.output_ids][:-1]
        assert completion.hidden_states.shape == (len(ids), len(LAYERS), 128)
        expected = reference(held.folder, ids)
        error = (as_float(completion.hidden_states) - expected).abs() / expected.abs().amax(dim=-1, keepdim=True)
        # bf16 keeps 8 bits: half a unit in the last place is 2^-9 of the value
        assert error.max() < 2**-8


def test_a_request_that_does_not_ask_for_states_leaves_no_file(held: Held) -> None:
    prompt = held.run(held.engine.render([{"role": "user", "content": "Why?"}]))
    completion = held.run(held.engine.generate(prompt, Sampling(3)))
    assert completion.hidden_states is None and len(completion.output_ids) <= 3
    assert list(held.engine._transfer.iterdir()) == []


def test_fused_and_two_pass_give_the_same_tokens_and_the_same_states_within_bf16(held: Held, tmp_path: Path) -> None:
    verifier = read_verifier(held.folder)
    rows = [
        PromptRow(i, f"p/{i}", "p", "train", [{"role": "user", "content": text}], 1) for i, text in enumerate(PROMPTS)
    ]
    write_prompts(tmp_path / "prompts.parquet", rows)
    meta = ShardMeta(verifier.fingerprint, LAYERS, verifier.hidden_size, "vllm", "c")

    def job(out: str, **changes: Any) -> Job:
        (tmp_path / out).mkdir()
        common = {"meta": meta, "ranges": ((0, len(PROMPTS)),), "sampling": Sampling(24), "keep_truncated": True}
        return Job(
            prompts=str(tmp_path / "prompts.parquet"),
            out=str(tmp_path / out),
            max_model_len=CONFIG.max_model_len,
            **{**common, **changes},
        )

    fused_job = job("fused")
    gate = ShardGate(str(held.folder), "float32", meta, len(PROMPTS), (0, 3), HfForward(str(held.folder), False))
    row = held.run(run_shard(held.engine, fused_job, 0, gate=gate))
    fused = read_samples(tmp_path / "fused" / row.file)
    held.run(run_shard(held.engine, job("answers", meta=None), 0))
    two_pass_job = job("two_pass", responses=str(tmp_path / "answers"))
    row = held.run(run_shard(held.engine, two_pass_job, 0, gate=gate))
    for out in ("fused", "two_pass"):
        (seen,) = read_gates(tmp_path / out, 1)
        print(f"{out} gate: {seen}")
        assert len(seen["samples"]) == len(PROMPTS) and all(max(s["from_hf"]) < 0.02 for s in seen["samples"])
        assert [one["sample"] for one in seen["shown"]] == [0, 3]
        assert all(one["turns"][0]["before"].endswith("<|im_start|>assistant\n") for one in seen["shown"])
    two_pass = read_samples(tmp_path / "two_pass" / row.file)

    assert [s.sample for s in fused] == [s.sample for s in two_pass] == list(range(len(PROMPTS)))
    worst = 0.0
    for a, b in zip(fused, two_pass, strict=True):
        assert a.token_ids.tolist() == b.token_ids.tolist() and a.loss_mask.tolist() == b.loss_mask.tolist()
        x, y = as_float(a.hidden_states), as_float(b.hidden_states)
        scale = x.abs().amax(dim=-1, keepdim=True)
        worst = max(worst, float(((x - y).abs() / scale).max()))
    print(f"fused against two-pass: largest difference {worst:.2e} of the largest component of a state")
    assert worst <= 2**-7  # one step of bf16 near the largest component: rounding, never another computation


def test_the_same_shard_again_is_the_same_file_byte_for_byte(held: Held, tmp_path: Path) -> None:
    """Alone in the engine: when requests come decides what a batch is made of, and that how its sums are rounded."""
    verifier, files = read_verifier(held.folder), []
    short = [text for text in PROMPTS if len(text) < 40]  # a longer one is cut here, of which vLLM dies: vllm_args.py
    rows = [
        PromptRow(i, f"p/{i}", "p", "train", [{"role": "user", "content": text}], 1) for i, text in enumerate(short)
    ]
    write_prompts(tmp_path / "prompts.parquet", rows)
    meta = ShardMeta(verifier.fingerprint, LAYERS, verifier.hidden_size, "vllm", "c")
    sampling = Sampling(24, temperature=0.8, seed=3)
    for out in (tmp_path / "once", tmp_path / "again"):
        out.mkdir()
        ranges = tuple((i, i + 1) for i in range(len(short)))
        job = Job(str(tmp_path / "prompts.parquet"), str(out), ranges, sampling, True, CONFIG.max_model_len, meta)
        files.append([out / held.run(run_shard(held.engine, job, shard)).file for shard in range(len(ranges))])
    for one, other in zip(*files, strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_vllm_renders_a_conversation_as_the_verifiers_own_template_does(held: Held) -> None:
    messages = [
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": "Because."},
        {"role": "user", "content": "Of what?"},
    ]
    tokenizer = AutoTokenizer.from_pretrained(held.folder)
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert held.run(held.engine.render(messages)) == tokenizer.encode(text, add_special_tokens=False)


def test_prompt_logprobs_follow_their_token_and_the_gate_knows_the_last_layer_by_them(held: Held) -> None:
    """The layer before the last one is the off-by-one of vllm#46973 and TorchSpec#87, captured by the real engine."""
    ids = held.run(held.engine.render([{"role": "user", "content": PROMPTS[1]}]))
    read = held.run(held.engine.generate(ids, Sampling(1), capture=True, prompt_logprobs=4))
    assert len(read.prompt_logprobs) == len(ids) - 1
    assert all(following in said for said, following in zip(read.prompt_logprobs, ids[1:], strict=True))
    gate, states = CaptureGate(str(held.folder), "float32", LAYERS), read.hidden_states
    found = gate.judge(0, states, states, read.prompt_logprobs, [])
    print(f"the last layer's log-probabilities: {found.agreement}")
    with pytest.raises(GateFailed, match="layer 3 is not the last one"):
        CaptureGate(str(held.folder), "float32", LAYERS[:-1]).judge(
            0, states[:, :-1], states[:, :-1], read.prompt_logprobs, []
        )


def test_the_ids_given_to_a_second_pass_are_the_ids_of_its_states(held: Held, tmp_path: Path) -> None:
    ids = np.array(held.run(held.engine.render([{"role": "user", "content": "Why?"}])) + [7, 8, 9], np.int32)
    mask = np.arange(len(ids)) >= len(ids) - 3
    commit_responses(tmp_path, 0, 1, [Response(5, ids, mask, "length")], {})
    meta = ShardMeta("v", LAYERS, 128, "vllm", "c")
    job = Job("unused", str(tmp_path), ((0, 1),), Sampling(1), True, 256, meta, responses=str(tmp_path))
    row = held.run(run_shard(held.engine, job, 0))
    (sample,) = read_samples(tmp_path / row.file)
    assert sample.token_ids.tolist() == ids[:-1].tolist() and sample.loss_mask.sum() == 2
    error = (as_float(sample.hidden_states) - reference(held.folder, ids[:-1].tolist())).abs().max()
    assert error < 0.1
