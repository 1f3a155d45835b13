"""What is read from a verifier folder, and what is said about an incomplete one."""

import json
import shutil
from pathlib import Path

import pytest

from actors.verifier import read_verifier
from tests.tiny import write_tiny_llama


@pytest.fixture
def folder(tiny_llama: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(tiny_llama, tmp_path / "copy"))


def edit_config(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_reads_the_shape(folder: Path) -> None:
    verifier = read_verifier(folder)
    assert (verifier.hidden_size, verifier.num_layers, verifier.vocab_size) == (128, 4, 512)
    assert (verifier.max_position_embeddings, verifier.architecture) == (1024, "LlamaForCausalLM")
    assert (verifier.num_attention_heads, verifier.rms_norm_eps) == (2, 1e-6)
    assert verifier.last_layer == 4
    assert Path(verifier.path) == folder.resolve()


def test_reads_a_nested_text_config(folder: Path) -> None:
    text = json.loads((folder / "config.json").read_text())
    outer = {"architectures": ["KimiK25ForConditionalGeneration"], "hidden_size": 7, "text_config": text}
    outer |= {"media_placeholder_token_id": 500, "num_attention_heads": 7, "rms_norm_eps": 7}
    (folder / "config.json").write_text(json.dumps(outer))
    verifier = read_verifier(folder)
    assert (verifier.hidden_size, verifier.num_layers) == (128, 4)
    assert (verifier.num_attention_heads, verifier.rms_norm_eps) == (2, 1e-6)
    assert verifier.architecture == "KimiK25ForConditionalGeneration"


@pytest.mark.parametrize(
    ("missing", "named"),
    [("config.json", "config.json"), ("model.safetensors", "safetensors"), ("tokenizer.json", "no tokenizer")],
)
def test_names_the_missing_file_and_the_key(folder: Path, missing: str, named: str) -> None:
    (folder / missing).unlink()
    with pytest.raises(ValueError, match=rf"verifier\.source.*{named}"):
        read_verifier(folder)


def test_names_the_first_weight_file_that_the_index_wants(folder: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors", "c": "model-3.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"lacks 2 of 3 weight files, first model-2\.safetensors"):
        read_verifier(folder)


def test_names_a_key_that_the_config_lacks(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    del config["num_hidden_layers"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="num_hidden_layers"):
        read_verifier(folder)


@pytest.mark.parametrize("value", [{}, {"media_placeholder_token_id": None}, {"media_placeholder_token_id": "163605"}])
def test_a_kimi_without_the_token_that_vllm_reads_is_refused_with_the_value_to_add(
    value: dict[str, object], folder: Path
) -> None:
    edit_config(folder, architectures=["KimiK25ForConditionalGeneration"], **value)
    with pytest.raises(
        ValueError, match=r'verifier\.source: .*no integer media_.*Add "media_placeholder_token_id": 163605'
    ):
        read_verifier(folder)
    edit_config(folder, media_placeholder_token_id=500)
    read_verifier(folder)


def test_fingerprint_is_of_the_content_not_the_place(tiny_llama: Path, folder: Path) -> None:
    assert read_verifier(folder).fingerprint == read_verifier(tiny_llama).fingerprint


@pytest.mark.parametrize("file", ["config.json", "chat_template.jinja", "tokenizer_config.json"])
def test_fingerprint_sees_a_changed_file(tiny_llama: Path, folder: Path, file: str) -> None:
    (folder / file).write_text((folder / file).read_text() + " ")
    assert read_verifier(folder).fingerprint != read_verifier(tiny_llama).fingerprint


def test_fingerprint_sees_a_changed_config_value(tiny_llama: Path, folder: Path) -> None:
    edit_config(folder, rms_norm_eps=1e-3)
    assert read_verifier(folder).fingerprint != read_verifier(tiny_llama).fingerprint


def test_fingerprint_sees_other_weight_shapes(tiny_llama: Path, tmp_path: Path) -> None:
    other = write_tiny_llama(tmp_path / "other", intermediate=192)
    shutil.copy(tiny_llama / "config.json", other / "config.json")
    assert read_verifier(other).fingerprint != read_verifier(tiny_llama).fingerprint
