"""experiment=kimi_k25 on a tiny random Kimi-K2.5 with the real vLLM: MLA verifier, mixture of experts, MLA draft.

What this cannot hold on a CPU (INT4 experts, TP, a Llama draft beside MLA) is in tests/gpu/kimi_true_width.py.
"""

import json
from pathlib import Path

import pytest
import torch
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

from actors.draft_flags import effective_flags
from actors.shards import read_samples
from tests.composed import typed
from tests.tiny_kimi import CONFIG, LAYERS, MLA, TEXT, write_tiny_kimi
from workflows.eagle3 import run_workflow

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]  # four minutes: make test-long

GATE_PROMPTS = 2  # as many as are held back for validation
# The machine, and the numbers of the tiny verifier; all else is what an engineer with eight GPUs gets.
HERE = ["engine=vllm_cpu", "train=cpu", "prompts=bundled", "cluster.gpu_gib=null", "verifier.trust_remote_code=false"]
TINY = [
    "draft=kimi_k25_mla",
    "draft.aux_layers=[1,2,3]",
    "draft.num_attention_heads=4",
    "draft.num_key_value_heads=4",
    "draft.intermediate_size=256",
    "draft.draft_vocab_size=256",
    "draft.mla.q_lora_rank=64",
    "draft.max_position_embeddings=1024",
    "verifier.kept_tokens=['<|im_end|>']",
    "engine.dtype=float32",
    "engine.max_model_len=512",
    "engine.max_num_seqs=32",
    "engine.max_num_batched_tokens=1024",
    "engine.kv_cache_gib=0.5",
    "prompts.max_prompts=40",
    "prompts.max_prompt_tokens=160",
    "generate.max_new_tokens=32",
    "generate.temperature=0",
    "extract.samples_per_shard=20",
    "train.epochs=8",
    "train.lr=4e-3",
    "train.num_workers=1",
    "train.batch_tokens=512",
    "train.bins=1",
    "train.max_sample_tokens=256",
    f"convert.gate_prompts={GATE_PROMPTS}",
    "convert.naming=midlayer",
    "benchmark.max_new_tokens=32",
    "benchmark.prompts_per_set=4",
    "benchmark.concurrency=4",
    "benchmark.speed_prompts=1",
    "benchmark.speed_new_tokens=8",
]


def test_from_prompts_to_a_measured_acceptance_length(local_ray: None, tmp_path: Path) -> None:
    verifier = write_tiny_kimi(tmp_path / "kimi")
    run_workflow(typed("experiment=kimi_k25", f"output_root={tmp_path}", f"verifier.source={verifier}", *HERE, *TINY))
    (file,) = (tmp_path / "runs").glob("kimi_k25-*/report.json")
    report = json.loads(file.read_text())

    assert report["steps"]["extract"]["accounting"]["layers"] == [1, 2, 3, LAYERS]
    assert _worst_state(verifier, next((tmp_path / "extract").glob("*/part-*.parquet"))) < 2**-7

    convert = report["steps"]["convert"]["accounting"]
    assert list(convert["formats"]) == ["flat"] == list(report["serve"]) and convert["gate"]["drafts"] > 0
    (flat,) = (tmp_path / "convert").glob("*/flat")
    assert effective_flags(flat)["mla"] == MLA

    # On the held-out prompts vLLM drafts what the trainer's forward proposes: same rope, scales and norms in both. The
    # trainer reads states rounded to bf16, so one near tie may fall the other way.
    held = report["benchmark"]["held_out"]
    predicted, measured = held["predicted"], held["measured"]
    print(f"predicted {predicted}, measured {measured}")
    assert measured["acceptance_length"] > 1.05  # the answers of a random verifier repeat themselves: this draft learns
    assert abs(predicted["drafts"] - measured["drafts"]) <= 1
    assert abs(predicted["acceptance_length"] - measured["acceptance_length"]) < 0.05
    for one in report["benchmark"]["sets"].values():
        assert one["acceptance_length"] == pytest.approx(1 + one["accepted"] / one["drafts"])


def _worst_state(verifier: Path, shard: Path) -> float:
    """Largest error of captured states against Hugging Face's forward, relative to the state's largest component."""
    from safetensors.torch import load_file

    text = {key: value for key, value in TEXT.items() if key not in ("model_type", "architectures", "torch_dtype")}
    model = DeepseekV3ForCausalLM(DeepseekV3Config(**text)).float().eval()
    tensors = load_file(verifier / "model.safetensors")
    named = {name.removeprefix("language_model."): tensor.float() for name, tensor in tensors.items()}
    lost = model.load_state_dict(_fused_experts(named), strict=False)
    assert not lost.missing_keys and not lost.unexpected_keys
    before_norm: dict[str, torch.Tensor] = {}
    model.model.norm.register_forward_hook(lambda _, args, __: before_norm.update(x=args[0]))
    worst = 0.0
    for sample in read_samples(shard)[:4]:
        with torch.no_grad():
            ids = torch.from_numpy(sample.token_ids.copy()).long()[None]
            states = model(ids, output_hidden_states=True).hidden_states
        expected = torch.stack([*(states[k][0] for k in (1, 2, 3)), before_norm["x"][0]], dim=1)
        captured = torch.from_numpy(sample.hidden_states.copy()).view(torch.bfloat16).float()
        error = (captured - expected).abs() / expected.abs().amax(dim=-1, keepdim=True)
        worst = max(worst, float(error.max()))
    print(f"captured states differ from the forward pass by at most {worst:.2e}")
    return worst


def _fused_experts(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """transformers 5 keeps the experts of a layer in one tensor each: [E, 2 * inner, hidden] and [E, hidden, inner]."""
    out = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    for layer in range(TEXT["first_k_dense_replace"], LAYERS):
        prefix = f"model.layers.{layer}.mlp.experts"
        experts = range(TEXT["n_routed_experts"])
        gate, up, down = (
            torch.stack([tensors[f"{prefix}.{e}.{name}_proj.weight"] for e in experts])
            for name in ("gate", "up", "down")
        )
        out |= {f"{prefix}.gate_up_proj": torch.cat([gate, up], dim=1), f"{prefix}.down_proj": down}
    return out


def test_the_fixture_is_a_kimi_by_its_config() -> None:
    assert CONFIG["architectures"] == ["KimiK25ForConditionalGeneration"] and CONFIG["text_config"] is TEXT
