"""Both written formats, against a draft that speculators built, and against what vLLM would read from them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from actors.draft_contents import content_faults
from actors.draft_flags import configured_flags, effective_flags, flag_differences
from actors.draft_formats import write_flat, write_speculators
from actors.draft_shapes import compare, differences, expected_shapes, table
from actors.verifier import Verifier, read_verifier
from conf.schema import DraftConfig, Naming
from tests.tiny_draft import TINY_DRAFT, rewrite_tensors, write_tiny_draft

VARIANTS: list[dict[str, Any]] = [
    {},
    {"norm_before_residual": False},
    {"norm_before_fc": False},
    {"norm_before_fc": False, "fc_norm": True},
    {"norm_output": False},
    {"aux_layers": [1, 2, 3, 4]},
    {"aux_layers": [1, 3], "num_layers": 2, "norm_before_fc": False, "fc_norm": True},
    {"draft_vocab_size": 512},
    {"head_dim": 32, "attention_bias": True, "rms_norm_eps": 1e-6},
    {"rope_theta": 5e4, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0}},
]
KIMI = Verifier("kimi", "0", 7168, 61, 163840, 262144, "KimiK25ForConditionalGeneration", 64, 1e-5)
KIMI_DRAFT = DraftConfig(
    aux_layers=[2, 30, 58],
    intermediate_size=18432,
    num_attention_heads=64,
    num_key_value_heads=64,
    head_dim=128,
    draft_vocab_size=32000,
    rope_theta=1e6,
    max_position_embeddings=131072,
    norm_before_fc=False,
)
PUBLISHED_KIMI = {  # AQ-MedAI/Kimi-K2-Instruct-eagle3
    "midlayer.self_attn.q_proj.weight": [8192, 14336],
    "midlayer.self_attn.k_proj.weight": [8192, 14336],
    "midlayer.self_attn.v_proj.weight": [8192, 14336],
    "midlayer.self_attn.o_proj.weight": [7168, 8192],
    "midlayer.mlp.gate_proj.weight": [18432, 7168],
    "midlayer.mlp.up_proj.weight": [18432, 7168],
    "midlayer.mlp.down_proj.weight": [7168, 18432],
    "midlayer.input_layernorm.weight": [7168],
    "midlayer.hidden_norm.weight": [7168],
    "midlayer.post_attention_layernorm.weight": [7168],
    "norm.weight": [7168],
    "fc.weight": [7168, 21504],
    "lm_head.weight": [32000, 7168],
    "d2t": [32000],
    "t2d": [163840],
    "embed_tokens.weight": [163840, 7168],
}


def write_both(draft: Path, verifier: Path, out: Path, naming: Naming = Naming.layers) -> tuple[Path, Path]:
    write_speculators(draft, read_verifier(verifier), out / "speculators", 5)
    write_flat(draft, read_verifier(verifier), out / "flat", naming, 5)
    return out / "speculators", out / "flat"


def read_json(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_both_formats_carry_every_flag_and_tensor(changes: dict[str, Any], tiny_llama: Path, tmp_path: Path) -> None:
    cfg = write_tiny_draft(tmp_path / "draft", tiny_llama, **changes)
    verifier = read_verifier(tiny_llama)
    trained = load_file(tmp_path / "draft" / "model.safetensors")
    trained.pop("embed_tokens.weight")
    for written in write_both(tmp_path / "draft", tiny_llama, tmp_path):
        assert flag_differences(effective_flags(written), configured_flags(cfg, verifier)) == []
        assert differences(compare(written, expected_shapes(cfg, verifier))) == []
        assert content_faults(written) == []
        tensors = load_file(written / "model.safetensors")
        assert tensors.keys() == trained.keys()
        assert all(torch.equal(tensors[name], trained[name]) for name in trained)


@pytest.mark.parametrize("key", ["norm_before_residual", "norm_before_fc", "norm_output"])
def test_a_flag_lost_from_either_format_is_seen(key: str, tiny_llama: Path, tmp_path: Path) -> None:
    wanted = {"norm_before_residual": False, "norm_before_fc": True, "norm_output": True}
    cfg = write_tiny_draft(tmp_path / "draft", tiny_llama, **wanted)
    speculators, flat = write_both(tmp_path / "draft", tiny_llama, tmp_path)
    for written in (speculators, flat):
        config = read_json(written)
        del config[key]
        config.get("eagle_config", {}).pop(key, None)
        (written / "config.json").write_text(json.dumps(config))
        found = flag_differences(effective_flags(written), configured_flags(cfg, read_verifier(tiny_llama)))
        # vLLM's default is what was configured here: True of the speculators format, False of the flat one
        unseen = written == flat and key == "norm_before_residual"
        assert found == ([] if unseen else [f"{key}: {not wanted[key]}, configured {wanted[key]}"])


def test_aux_layers_other_than_three_are_counted_where_vllm_looks(tiny_llama: Path, tmp_path: Path) -> None:
    write_tiny_draft(tmp_path / "draft", tiny_llama, aux_layers=[1, 2, 3, 4])
    speculators, flat = write_both(tmp_path / "draft", tiny_llama, tmp_path)
    assert read_json(speculators)["transformer_layer_config"]["num_aux_hidden_states"] == 4
    assert read_json(flat)["num_aux_hidden_states"] == 4
    assert effective_flags(tmp_path / "draft")["num_aux_hidden_states"] == 3  # as trained, vLLM would not load it


def test_flat_config_says_the_verifiers_and_the_engines_part(tiny_llama: Path, tmp_path: Path) -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    write_tiny_draft(tmp_path / "draft", tiny_llama, rope_theta=5e4, rope_scaling=scaling)
    config = read_json(write_both(tmp_path / "draft", tiny_llama, tmp_path)[1])
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 2, 3]
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 2, 3]
    assert (config["bos_token_id"], config["eos_token_id"], config["vocab_size"]) == (1, 2, 512)
    assert config["dtype"] == config["torch_dtype"] == "bfloat16"
    assert "target_hidden_size" not in config  # null would be multiplied with
    assert config["rope_parameters"] == scaling | {"rope_theta": 5e4}
    assert config["rope_scaling"] == scaling and config["rope_theta"] == 5e4


def test_transformers_reads_the_flat_config_as_we_do(tiny_llama: Path, tmp_path: Path) -> None:
    """vLLM's flat path starts from LlamaConfig: old and new rope keys must not cancel each other."""
    from transformers import AutoConfig

    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    write_tiny_draft(tmp_path / "draft", tiny_llama, rope_theta=5e4, rope_scaling=scaling, norm_before_fc=True)
    flat = write_both(tmp_path / "draft", tiny_llama, tmp_path)[1]
    read = AutoConfig.from_pretrained(flat)
    flags = effective_flags(flat)
    assert dict(read.rope_parameters) == flags["rope"] == scaling | {"rope_theta": 5e4}
    assert (read.head_dim, read.num_key_value_heads) == (flags["head_dim"], flags["num_key_value_heads"])
    assert read.norm_before_fc and read.eagle_config["norm_before_fc"] and read.norm_output


def test_speculators_config_is_made_ready_to_serve(tiny_llama: Path, tmp_path: Path) -> None:
    write_tiny_draft(tmp_path / "draft", tiny_llama)
    config = read_json(tmp_path / "draft")
    config["speculators_config"]["verifier"]["name_or_path"] = "a path of the machine that trained"
    (tmp_path / "draft" / "config.json").write_text(json.dumps(config))
    config = read_json(write_both(tmp_path / "draft", tiny_llama, tmp_path)[0])
    assert config["speculators_config"]["verifier"]["name_or_path"] == read_verifier(tiny_llama).path
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 5
    assert "auto_map" not in config


def test_speculators_trains_on_from_the_written_format(tiny_llama: Path, tmp_path: Path) -> None:
    """Without embed_tokens its loader may keep uninitialised memory: the documented call puts the verifier's back."""
    from speculators.models.eagle3.core import Eagle3DraftModel

    write_tiny_draft(tmp_path / "draft", tiny_llama)
    model = Eagle3DraftModel.from_pretrained(write_both(tmp_path / "draft", tiny_llama, tmp_path)[0])
    model._load_verifier_weights(overwrite_embed_tokens=True)
    trained = load_file(tmp_path / "draft" / "model.safetensors")
    loaded = model.state_dict()
    assert all(torch.equal(loaded[name].to(tensor.dtype), tensor) for name, tensor in trained.items())


def test_embedding_is_left_out_only_when_it_is_the_verifiers(tiny_llama: Path, tmp_path: Path) -> None:
    write_tiny_draft(tmp_path / "draft", tiny_llama)
    for written in write_both(tmp_path / "draft", tiny_llama, tmp_path / "equal"):
        assert "embed_tokens.weight" not in load_file(written / "model.safetensors")

    rewrite_tensors(tmp_path / "draft", lambda tensors: tensors["embed_tokens.weight"][511, 127].add_(0.5))
    for written in write_both(tmp_path / "draft", tiny_llama, tmp_path / "trained"):
        kept = load_file(written / "model.safetensors")["embed_tokens.weight"]
        assert torch.equal(kept, load_file(tmp_path / "draft" / "model.safetensors")["embed_tokens.weight"])


def test_embedding_of_a_sharded_multimodal_verifier_is_found(tiny_llama: Path, tmp_path: Path) -> None:
    write_tiny_draft(tmp_path / "draft", tiny_llama)
    sharded = tmp_path / "verifier"
    sharded.mkdir()
    for file in tiny_llama.iterdir():
        if file.suffix != ".safetensors":
            (sharded / file.name).write_bytes(file.read_bytes())
    tensors = {f"language_model.{name}": t for name, t in load_file(tiny_llama / "model.safetensors").items()}
    embedding = "language_model.model.embed_tokens.weight"
    other = "language_model.model.layers.61.embed_tokens.weight"  # an MTP layer's: longer name
    save_file({embedding: tensors.pop(embedding)}, sharded / "model-00001-of-00002.safetensors")
    save_file(tensors | {other: torch.zeros(512, 128)}, sharded / "model-00002-of-00002.safetensors")
    weight_map = dict.fromkeys([*tensors, other], "model-00002-of-00002.safetensors")
    weight_map[embedding] = "model-00001-of-00002.safetensors"
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    for written in write_both(tmp_path / "draft", sharded, tmp_path):
        assert "embed_tokens.weight" not in load_file(written / "model.safetensors")


def test_midlayer_naming_renames_the_layer_and_nothing_else(tiny_llama: Path, tmp_path: Path) -> None:
    cfg = write_tiny_draft(tmp_path / "draft", tiny_llama)
    flat = write_both(tmp_path / "draft", tiny_llama, tmp_path, Naming.midlayer)[1]
    names = load_file(flat / "model.safetensors").keys()
    assert {"midlayer.self_attn.q_proj.weight", "midlayer.hidden_norm.weight", "fc.weight", "d2t", "t2d"} <= names
    assert not [name for name in names if name.startswith("layers.")]
    assert differences(compare(flat, expected_shapes(cfg, read_verifier(tiny_llama)))) == []


def test_midlayer_naming_of_two_layers_is_refused(tiny_llama: Path, tmp_path: Path) -> None:
    write_tiny_draft(tmp_path / "draft", tiny_llama, num_layers=2)
    with pytest.raises(ValueError, match="convert.naming"):
        write_both(tmp_path / "draft", tiny_llama, tmp_path, Naming.midlayer)


def test_an_identity_map_of_a_whole_vocabulary_is_dropped(tiny_llama: Path, tmp_path: Path) -> None:
    write_tiny_draft(tmp_path / "draft", tiny_llama, draft_vocab_size=512)
    identity = {"d2t": torch.zeros(512, dtype=torch.long), "t2d": torch.ones(512, dtype=torch.bool)}
    rewrite_tensors(tmp_path / "draft", lambda tensors: tensors.update(identity))
    for written in write_both(tmp_path / "draft", tiny_llama, tmp_path):
        assert not {"d2t", "t2d"} & load_file(written / "model.safetensors").keys()


def test_a_wrong_head_dim_is_named_in_the_table(tiny_llama: Path, tmp_path: Path) -> None:
    write_tiny_draft(tmp_path / "draft", tiny_llama)
    wanted = expected_shapes(replace(TINY_DRAFT, head_dim=32), read_verifier(tiny_llama))
    rows = differences(compare(tmp_path / "draft", wanted))
    assert [row.name for row in rows] == [f"layers.0.self_attn.{p}_proj.weight" for p in "koqv"]
    line = next(line for line in table(rows).splitlines() if "q_proj" in line)
    assert line.split("  ") == ["layers.0.self_attn.q_proj.weight", "[256, 256]", "[128, 256]", "differs"]


def test_missing_and_unexpected_tensors_are_told_apart(tiny_llama: Path, tmp_path: Path) -> None:
    cfg = write_tiny_draft(tmp_path / "draft", tiny_llama)

    def swap(tensors: dict[str, torch.Tensor]) -> None:
        tensors["fc_norm.0.weight"] = tensors.pop("input_norm.weight")
        del tensors["embed_tokens.weight"]

    rewrite_tensors(tmp_path / "draft", swap)
    rows = compare(tmp_path / "draft", expected_shapes(cfg, read_verifier(tiny_llama)))
    verdicts = {row.name: row.verdict for row in rows if row.verdict != "equal"}
    assert verdicts == {
        "fc_norm.0.weight": "unexpected",
        "input_norm.weight": "missing",
        "embed_tokens.weight": "left out",
    }


def test_shapes_of_the_published_kimi_draft_follow_from_its_configuration() -> None:
    ours = {name.replace("layers.0.", "midlayer."): shape for name, shape in expected_shapes(KIMI_DRAFT, KIMI).items()}
    assert ours == PUBLISHED_KIMI


def test_values_that_were_never_filled_are_found(tiny_llama: Path, tmp_path: Path) -> None:
    write_tiny_draft(tmp_path / "draft", tiny_llama)
    assert content_faults(tmp_path / "draft") == []

    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"][3, 5] = torch.nan
        tensors["d2t"].zero_()

    rewrite_tensors(tmp_path / "draft", spoil)
    faults = content_faults(tmp_path / "draft")
    assert len(faults) == 2 and "lm_head.weight" in faults[0] and "d2t" in faults[1]


def test_a_rerun_replaces_what_an_interrupted_one_left(tiny_llama: Path, tmp_path: Path) -> None:
    write_tiny_draft(tmp_path / "draft", tiny_llama)
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "stale.safetensors").write_bytes(b"half")
    for written in write_both(tmp_path / "draft", tiny_llama, tmp_path):
        assert sorted(file.name for file in written.iterdir()) == ["config.json", "model.safetensors"]
    assert not list(tmp_path.glob(".tmp-*"))
