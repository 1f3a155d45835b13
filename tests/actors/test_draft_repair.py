"""The config.json that a published draft gets for vLLM: nothing is left to a default, and it is the same draft."""

import json
from pathlib import Path
from typing import Any

import pytest

from actors.draft_explained import explain
from actors.draft_flags import configured_flags, effective_flags, flag_differences, flags_of
from actors.draft_formats import write_speculators
from actors.draft_repair import LAYERS, NORM_FLAGS, repaired, write_repaired
from actors.verifier import read_verifier
from conf.schema import LayerIds
from tests.tiny_draft import edit_config, write_published_draft


def test_aux_layers_and_norm_flags_are_written_out(tiny_llama: Path, tmp_path: Path) -> None:
    cfg, verifier = write_published_draft(tmp_path, tiny_llama), read_verifier(tiny_llama)
    before = (tmp_path / "published" / "config.json").read_bytes()
    assert any(reading.unsafe for reading in explain(tmp_path / "published"))
    write_repaired(tmp_path / "published", verifier, LayerIds.vllm, tmp_path / "out")
    assert not any(reading.unsafe for reading in explain(tmp_path / "out"))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config[LAYERS] == [1, 2, 3] and config["num_aux_hidden_states"] == 3
    assert [config[key] for key in NORM_FLAGS] == [False] * 4
    assert flag_differences(effective_flags(tmp_path / "out"), configured_flags(cfg, verifier)) == []
    assert (tmp_path / "published" / "config.json").read_bytes() == before


def test_weights_are_linked_and_a_rerun_replaces_the_folder(tiny_llama: Path, tmp_path: Path) -> None:
    write_published_draft(tmp_path, tiny_llama)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "stale.json").touch()
    for _ in range(2):
        write_repaired(tmp_path / "published", read_verifier(tiny_llama), LayerIds.vllm, tmp_path / "out")
        assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["config.json", "model.safetensors"]
    weights = tmp_path / "out" / "model.safetensors"
    assert weights.is_symlink() and weights.samefile(tmp_path / "published" / "model.safetensors")
    assert not list(tmp_path.glob(".tmp-*"))


CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"eagle_config": {LAYERS: [1, 2, 3, 4]}}, {"aux_layers": [1, 2, 3, 4], "num_aux_hidden_states": 4}),
    ({"eagle_config": {}, LAYERS: [1, 4]}, {"aux_layers": [1, 4], "num_aux_hidden_states": 2}),
    ({"eagle_config": {LAYERS: [1, 2, 3], "norm_before_fc": True}}, {"norm_before_fc": True}),
    ({"eagle_config": None}, {"aux_layers": [2, 2, 1]}),  # vLLM's own choice for four layers
    ({"norm_before_residual": True, "norm_output": True}, {"norm_before_residual": True, "norm_output": True}),
]


@pytest.mark.parametrize(("changes", "wanted"), CASES, ids=str)
def test_what_was_meant_is_what_vllm_reads_on_top(
    changes: dict[str, Any], wanted: dict[str, Any], tiny_llama: Path, tmp_path: Path
) -> None:
    write_published_draft(tmp_path, tiny_llama)
    edit_config(tmp_path / "published", **changes)
    config = json.loads((tmp_path / "published" / "config.json").read_text())
    written = repaired(config | {"target_hidden_size": None}, "it", read_verifier(tiny_llama))
    assert "target_hidden_size" not in written
    flags = flags_of(written, "it")
    assert {key: flags[key] for key in wanted} == wanted
    on_top = {"aux_layers": LAYERS}
    assert {key: written[on_top.get(key, key)] for key in wanted} == wanted


def test_in_the_speculators_format_each_key_goes_where_vllm_looks(tiny_llama: Path, tmp_path: Path) -> None:
    cfg = write_published_draft(tmp_path, tiny_llama, aux_layers=[1, 2, 3, 4], norm_before_residual=True)
    verifier = read_verifier(tiny_llama)
    write_speculators(tmp_path / "source", verifier, tmp_path / "speculators", 3)
    config = json.loads((tmp_path / "speculators" / "config.json").read_text())
    del config["norm_before_residual"], config["transformer_layer_config"]["num_aux_hidden_states"]
    written = repaired(config, "it", verifier)
    assert written["norm_before_residual"] is True
    assert written["transformer_layer_config"]["num_aux_hidden_states"] == 4
    assert flag_differences(flags_of(written, "it"), configured_flags(cfg, verifier)) == []
