"""A draft with multi-head latent attention: speculators builds it, the flat format carries it as vLLM reads it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from actors.draft_explained import explain
from actors.draft_flags import configured_flags, effective_flags, flag_differences
from actors.draft_formats import write_flat, write_speculators
from actors.draft_model import build_draft
from actors.draft_shapes import compare, differences, expected_shapes
from actors.verifier import read_verifier
from actors.vocabulary import Vocabulary
from conf.schema import DraftConfig, MlaConfig, Naming
from tests.tiny_draft import write_tiny_draft
from tests.tiny_kimi import MLA, ROPE

SHAPE: dict[str, Any] = {
    "mla": MlaConfig(**MLA),
    "head_dim": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "norm_before_fc": False,
    "fc_norm": True,
    "rope_theta": ROPE["rope_theta"],
    "rope_scaling": {key: value for key, value in ROPE.items() if key != "rope_theta"},
    "rms_norm_eps": 1e-5,
}
VARIANTS: list[dict[str, Any]] = [
    {},
    {"fc_norm": False, "norm_output": False, "norm_before_residual": False},
    {"aux_layers": [1, 3], "draft_vocab_size": 512},
    {"rope_theta": 1e6, "rope_scaling": None},
    {"mla": MlaConfig(96, 64, 32, 16, 48), "head_dim": 48},
]


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
@pytest.mark.parametrize("naming", list(Naming))
def test_the_flat_format_carries_every_flag_and_tensor(
    changes: dict[str, Any], naming: Naming, tiny_llama: Path, tmp_path: Path
) -> None:
    verifier = read_verifier(tiny_llama)
    cfg = write_tiny_draft(tmp_path / "draft", tiny_llama, **{**SHAPE, **changes})
    assert differences(compare(tmp_path / "draft", expected_shapes(cfg, verifier))) == []
    write_flat(tmp_path / "draft", verifier, tmp_path / "flat", naming, 3)

    assert differences(compare(tmp_path / "flat", expected_shapes(cfg, verifier))) == []
    assert flag_differences(effective_flags(tmp_path / "flat"), configured_flags(cfg, verifier)) == []
    trained, written = (load_file(tmp_path / name / "model.safetensors") for name in ("draft", "flat"))
    for name, tensor in written.items():
        assert torch.equal(tensor, trained[name.replace("midlayer.", "layers.0.")]), name
    config = json.loads((tmp_path / "flat" / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("deepseek_v2", ["Eagle3DeepseekV2ForCausalLM"])


def test_a_lost_key_is_a_difference(tiny_llama: Path, tmp_path: Path) -> None:
    """DeepseekV2Config would fill in 512 for 64."""
    changes = {"mla": MlaConfig(96, 64, 32, 16, 48), "head_dim": 48}
    cfg = write_tiny_draft(tmp_path / "draft", tiny_llama, **{**SHAPE, **changes})
    write_flat(tmp_path / "draft", read_verifier(tiny_llama), tmp_path / "flat", Naming.layers, 3)
    file = tmp_path / "flat" / "config.json"
    config = json.loads(file.read_text())
    del config["kv_lora_rank"]
    file.write_text(json.dumps(config))
    (found,) = flag_differences(effective_flags(tmp_path / "flat"), configured_flags(cfg, read_verifier(tiny_llama)))
    assert found.startswith("mla: ") and "'kv_lora_rank': 512" in found


def test_there_is_no_speculators_format(tiny_llama: Path, tmp_path: Path) -> None:
    write_tiny_draft(tmp_path / "draft", tiny_llama, **SHAPE)
    with pytest.raises(ValueError, match="flat format only; use write_flat"):
        write_speculators(tmp_path / "draft", read_verifier(tiny_llama), tmp_path / "out", 3)


def test_how_vllm_reads_it_is_explained(tiny_llama: Path, tmp_path: Path) -> None:
    write_tiny_draft(tmp_path / "draft", tiny_llama, **SHAPE)
    write_flat(tmp_path / "draft", read_verifier(tiny_llama), tmp_path / "flat", Naming.midlayer, 3)
    readings = {r.key: r for r in explain(tmp_path / "flat")}
    assert not any(r.unsafe for r in readings.values())
    assert readings["mla"].value == MLA and readings["head_dim"].value == 192
    assert "does not look at it" in readings["norm_before_fc"].remark


def test_latent_norms_have_the_drafts_epsilon_and_dense_mlp(tiny_llama: Path) -> None:
    """transformers gives the latent norms 1e-6 whatever the config says; vLLM gives them the config's."""
    cfg = DraftConfig(
        aux_layers=[1, 2, 3], intermediate_size=192, draft_vocab_size=512, max_position_embeddings=1024, **SHAPE
    )
    whole = Vocabulary(None, None, 1.0, 1)
    model = build_draft(cfg, read_verifier(tiny_llama), whole, ttt_steps=2, attention="eager", seed=0)
    attention = model.layers[0].self_attn
    assert attention.q_a_layernorm.variance_epsilon == attention.kv_a_layernorm.variance_epsilon == 1e-5
    assert type(model.layers[0].mlp).__name__ == "DeepseekV3MLP"
    length = 10
    tokens = model(
        hidden_states=torch.randn(1, length, 3 * 128),
        input_ids=torch.randint(0, 512, (1, length)),
        document_ids=torch.zeros(1, length, dtype=torch.long),
        ttt_steps=2,
    )
    assert [t.shape for t in tokens] == [(1, length)] * 2
