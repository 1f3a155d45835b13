"""Where a verifier's embedding, lm_head and final norm lie, and which verifiers have none that a draft could use."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from actors.verifier import read_verifier
from actors.verifier_tensors import EMBEDDING, FINAL_NORM, LM_HEAD, Place, find_tensor
from tests.tiny import write_tiny_llama
from tests.tiny_draft import rewrite_tensors


@pytest.fixture
def folder(tiny_llama: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(tiny_llama, tmp_path / "copy"))


def write(folder: Path, files: dict[str, list[str]], *, index: bool, **config: Any) -> Path:
    """Weight files of empty tensors."""
    folder.mkdir(exist_ok=True)
    for file, names in files.items():
        save_file({name: torch.zeros(1) for name in names}, folder / file)
    if index:
        found = {name: file for file, names in files.items() for name in names}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": found}))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


KIMI_FILES = {
    "a.safetensors": ["language_model.model.layers.61.embed_tokens.weight", "language_model.model.norm.weight"],
    "b.safetensors": ["language_model.lm_head.weight", "language_model.model.layers.61.shared_head.norm.weight"],
    "c.safetensors": ["language_model.model.embed_tokens.weight", "vision_model.norm.weight", "mtp_lm_head.weight"],
    "d.safetensors": ["draft.model.layers.61.lm_head.weight"],
}


@pytest.mark.parametrize("index", [True, False])
def test_the_shortest_name_that_ends_so_is_found_below_any_prefix(index: bool, tmp_path: Path) -> None:
    write(tmp_path, KIMI_FILES, index=index)
    assert find_tensor(tmp_path, EMBEDDING) == Place(
        tmp_path / "c.safetensors", "language_model.model.embed_tokens.weight"
    )
    assert find_tensor(tmp_path, LM_HEAD) == Place(tmp_path / "b.safetensors", "language_model.lm_head.weight")
    assert find_tensor(tmp_path, FINAL_NORM) == Place(tmp_path / "a.safetensors", "language_model.model.norm.weight")


def test_with_an_index_no_file_is_opened(tmp_path: Path) -> None:
    write(tmp_path, KIMI_FILES, index=True)
    for file in tmp_path.glob("*.safetensors"):
        file.write_bytes(b"")
    assert find_tensor(tmp_path, EMBEDDING).name == "language_model.model.embed_tokens.weight"


@pytest.mark.parametrize(
    "config",
    [{"tie_word_embeddings": True}, {"tie_word_embeddings": False, "text_config": {"tie_word_embeddings": True}}],
)
def test_a_tied_lm_head_is_the_embedding(config: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path, {"a.safetensors": ["model.embed_tokens.weight"]}, index=False, **config)
    assert find_tensor(tmp_path, LM_HEAD) == find_tensor(tmp_path, EMBEDDING)


@pytest.mark.parametrize(("suffix", "tied"), [(LM_HEAD, False), (FINAL_NORM, True)])
def test_an_absent_tensor_is_an_error_with_its_name(suffix: str, tied: bool, tmp_path: Path) -> None:
    write(tmp_path, {"a.safetensors": ["model.embed_tokens.weight"]}, index=False, tie_word_embeddings=tied)
    with pytest.raises(ValueError, match=rf"verifier\.source: .*no tensor that ends in {suffix}.*Use a"):
        find_tensor(tmp_path, suffix)


def packed(name: str, suffix: str) -> Any:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{name}.{suffix}"] = tensors.pop(f"{name}.weight").to(torch.int32)

    return change


def fp8(name: str) -> Any:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{name}.weight"] = tensors[f"{name}.weight"].to(torch.float8_e4m3fn)
        tensors[f"{name}.weight_scale"] = torch.ones(1)

    return change


def packed_beside_mtp(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.4.lm_head.weight"] = tensors["lm_head.weight"].clone()
    packed("lm_head", "weight_packed")(tensors)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (packed("lm_head", "weight_packed"), r"quantized lm_head \(there is lm_head\.weight_packed.*ignores lm_head"),
        (
            packed("lm_head", "weight_scale"),
            r"quantized lm_head \(there is lm_head\.weight_scale.*targets are computed",
        ),
        (packed("lm_head", "qweight"), r"quantized lm_head \(there is lm_head\.qweight"),
        (packed_beside_mtp, r"quantized lm_head \(there is lm_head\.weight_packed"),
        (fp8("lm_head"), r"quantized lm_head \(lm_head\.weight is F8_E4M3.*targets are computed with its rows"),
        (packed("model.embed_tokens", "weight_packed"), r"quantized embed_tokens .*ignores embed_tokens"),
        (fp8("model.embed_tokens"), r"quantized embed_tokens \(model\.embed_tokens\.weight is F8_E4M3"),
    ],
)
def test_quantized_rows_are_refused(change: Any, message: str, folder: Path) -> None:
    rewrite_tensors(folder, change)
    with pytest.raises(ValueError, match=r"verifier\.source: .*" + message):
        read_verifier(folder)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_plain_rows_of_any_float_are_taken(dtype: str, tmp_path: Path) -> None:
    read_verifier(write_tiny_llama(tmp_path, dtype=dtype))


def test_quantized_layers_are_no_matter(folder: Path) -> None:
    rewrite_tensors(folder, packed("model.layers.0.mlp.gate_proj", "weight_packed"))
    read_verifier(folder)


def test_a_lost_lm_head_is_refused_and_a_tied_one_is_not(folder: Path, tmp_path: Path) -> None:
    """speculators would take the embedding for it, without a word."""
    read_verifier(write_tiny_llama(tmp_path / "tied", tied=True))
    rewrite_tensors(folder, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(ValueError, match=r"no lm_head\.weight, and its config\.json says tie_word_embeddings=false"):
        read_verifier(folder)
