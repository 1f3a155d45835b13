"""What a plan knows of a verifier without its weights, where that comes from, and what it cannot know."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from conf.schema import VerifierConfig
from workflows.verifier_facts import REFERENCES, folder_facts, verifier_facts
from workflows.weight_bytes import INDEX, computed_bytes

# 60 layers x 384 experts x 3 x 7168 x 2048 in 4 bits and a bf16 scale for each 32; 11,722,185,728 weights in bf16
KIMI_K25_BYTES = 507_343_011_840 + 63_417_876_480 + 2 * 11_722_185_728
# the same experts, attention and MLPs in 8 bits and an fp32 scale for each 128 x 128; the rest in bf16
KIMI_K2_BYTES = 1_023_893_241_856 + 249_973_936 + 2 * 2_514_967_552


@pytest.fixture(autouse=True)
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache without a network."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def config_of(name: str) -> dict[str, Any]:
    return json.loads((REFERENCES / name).read_text())["config"]


def test_kimi_k25_is_known_without_network_and_without_files(tmp_path: Path) -> None:
    facts = verifier_facts(VerifierConfig(source="moonshotai/Kimi-K2.5"), tmp_path)
    assert (facts.verifier.num_layers, facts.verifier.hidden_size, facts.verifier.vocab_size) == (61, 7168, 163840)
    assert facts.latent == 576 and facts.element_bytes is None
    assert facts.weight_bytes == KIMI_K25_BYTES == 594_205_259_776
    assert "comes with Eyrie" in facts.source and "computed" in facts.source


def test_kimi_k2_is_fp8_and_nearly_twice_as_large(tmp_path: Path) -> None:
    facts = verifier_facts(VerifierConfig(source="moonshotai/Kimi-K2-Instruct"), tmp_path)
    assert facts.weight_bytes == KIMI_K2_BYTES


def test_smollm2_is_known_before_it_is_converted_and_read_afterwards(tiny_llama: Path, tmp_path: Path) -> None:
    bundled = VerifierConfig(source="bundled:smollm2")
    facts = verifier_facts(bundled, tmp_path)
    assert facts.weight_bytes == 269_060_552 and "before its conversion" in facts.source
    # what the file has beside its weights is a header
    assert 0 < facts.weight_bytes - computed_bytes(config_of("smollm2_config.json")) < 50_000
    shutil.copytree(tiny_llama, tmp_path / "verifiers" / "smollm2-01234567")
    assert verifier_facts(bundled, tmp_path) == folder_facts(tmp_path / "verifiers" / "smollm2-01234567")
    with pytest.raises(ValueError, match=r"verifier\.source: no bundled verifier 'other'.*bundled:smollm2"):
        verifier_facts(VerifierConfig(source="bundled:other"), tmp_path)


def test_a_folder_counts_its_files_its_index_or_what_its_config_gives(tiny_llama: Path, tmp_path: Path) -> None:
    size = (tiny_llama / "model.safetensors").stat().st_size
    facts = folder_facts(tiny_llama)
    assert (facts.weight_bytes, facts.latent, facts.kv_heads, facts.head_dim) == (size, None, 1, 64)
    assert facts.element_bytes == 2
    shutil.copy(tiny_llama / "config.json", tmp_path)
    computed = folder_facts(tmp_path)
    header = int.from_bytes((tiny_llama / "model.safetensors").read_bytes()[:8], "little")
    assert computed.weight_bytes == size - 8 - header and "computed" in computed.source
    index = {"metadata": {"total_size": 12345}, "weight_map": {"a": "model-00001-of-00001.safetensors"}}
    (tmp_path / INDEX).write_text(json.dumps(index))
    assert folder_facts(tmp_path).weight_bytes == 12345
    (tmp_path / "model-00001-of-00001.safetensors").write_bytes(bytes(77))
    assert folder_facts(tmp_path).weight_bytes == 77
    (tmp_path / INDEX).write_text("{")
    with pytest.raises(ValueError, match=r"verifier\.source: .*index\.json cannot be read"):
        folder_facts(tmp_path)


def test_a_nested_text_config_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_of("kimi_k25_config.json")))
    assert folder_facts(tmp_path).weight_bytes == KIMI_K25_BYTES


def test_a_hub_id_comes_from_the_cache(tiny_llama: Path, hub_cache: Path, tmp_path: Path) -> None:
    revision = "0123456789abcdef0123456789abcdef01234567"
    repo = hub_cache / "models--nest--tiny"
    shutil.copytree(tiny_llama, repo / "snapshots" / revision)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(revision)
    facts = verifier_facts(VerifierConfig(source="nest/tiny"), tmp_path)
    assert facts.weight_bytes == folder_facts(tiny_llama).weight_bytes and "nest/tiny from the hub" in facts.source


@pytest.mark.parametrize("source", ["nest/absent", "no such id!"])
def test_an_unknown_id_without_a_network_names_the_way_out(source: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"verifier\.source: cannot read config.json of '{source}'.*Give a folder"):
        verifier_facts(VerifierConfig(source=source), tmp_path)
    with pytest.raises(ValueError, match=r"verifier\.source: there is no folder /no/such"):
        verifier_facts(VerifierConfig(source="/no/such"), tmp_path)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model_type": "falcon"}, "model_type 'falcon'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization gptq"),
        (
            {"quantization_config": {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}},
            "quantization compressed-tensors nvfp4-pack-quantized",
        ),
        (
            {"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": []}},
            "not the routed experts alone",
        ),
        ({"hidden_size": None}, "has no key 'hidden_size'"),
    ],
)
def test_what_cannot_be_computed_is_not_guessed(changes: dict[str, Any], why: str, tmp_path: Path) -> None:
    config = {k: v for k, v in (config_of("smollm2_config.json") | changes).items() if v is not None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=rf"verifier\.source: .*{why}"):
        folder_facts(tmp_path)
