"""What is known of a tokenizer without loading it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from actors.tokenizer_files import added_tokens, tokenizer_code
from actors.verifier import read_verifier
from tests.tiny import KIMI_MAP, use_tiktoken


def kimi_like(folder: Path, source: Path, auto_map: Any, *, code: bool = True) -> Path:
    return use_tiktoken(Path(shutil.copytree(source, folder)), auto_map, code=code)


@pytest.mark.parametrize(
    "auto_map",
    [
        KIMI_MAP,
        {"AutoTokenizer": [None, "tokenization_kimi.Fast"]},
        {"AutoTokenizer": "tokenization_kimi.T"},
        ["tokenization_kimi.T", None],
    ],
)
def test_the_python_of_a_tiktoken_checkpoint_is_named_and_not_run(
    auto_map: Any, tiny_llama: Path, tmp_path: Path
) -> None:
    verifier = read_verifier(kimi_like(tmp_path / "kimi", tiny_llama, auto_map))
    assert verifier.tokenizer_code == "tokenization_kimi.py"
    assert verifier.added_tokens == {"[EOS]": 7, "<think>": 500}


def test_code_in_another_repository_is_named_with_it(tiny_llama: Path, tmp_path: Path) -> None:
    auto_map = {"AutoTokenizer": ["moonshotai/Kimi-K2.5--tokenization_kimi.TikTokenTokenizer", None]}
    folder = kimi_like(tmp_path / "kimi", tiny_llama, auto_map, code=False)
    assert tokenizer_code(folder) == "moonshotai/Kimi-K2.5--tokenization_kimi.py"


def test_a_checkpoint_that_transformers_reads_needs_no_code(tiny_llama: Path, tmp_path: Path) -> None:
    folder = kimi_like(tmp_path / "kimi", tiny_llama, KIMI_MAP)
    shutil.copy(tiny_llama / "tokenizer.json", folder)
    assert read_verifier(folder).tokenizer_code is None
    assert read_verifier(tiny_llama).tokenizer_code is None


@pytest.mark.parametrize(
    ("auto_map", "code", "message"),
    [
        (None, True, r"no auto_map in tokenizer_config\.json names it. Copy"),
        ({"AutoConfig": "configuration_kimi.C"}, True, r"no auto_map in tokenizer_config\.json names it. Copy"),
        (KIMI_MAP, False, r"lacks tokenization_kimi\.py.*Copy the \*\.py files"),
    ],
)
def test_a_tiktoken_checkpoint_without_its_code_is_refused(
    auto_map: Any, code: bool, message: str, tiny_llama: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"verifier\.source: .*" + message):
        read_verifier(kimi_like(tmp_path / "kimi", tiny_llama, auto_map, code=code))


def test_other_tokenizer_code_is_another_verifier(tiny_llama: Path, tmp_path: Path) -> None:
    folder = kimi_like(tmp_path / "kimi", tiny_llama, KIMI_MAP)
    before = read_verifier(folder).fingerprint
    (folder / "tokenization_kimi.py").write_text("pass\n")
    assert read_verifier(folder).fingerprint != before


def test_added_tokens_come_from_both_files_in_the_order_of_their_ids(tiny_llama: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_llama, tmp_path, dirs_exist_ok=True)
    assert list(added_tokens(tmp_path).items()) == [("<|endoftext|>", 0), ("<|im_start|>", 1), ("<|im_end|>", 2)]
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config["added_tokens_decoder"] = {"511": {"content": "<late>"}, "5": {"content": "<early>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert list(added_tokens(tmp_path)) == ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<early>", "<late>"]
    (tmp_path / "tokenizer.json").unlink()
    assert added_tokens(tmp_path) == {"<early>": 5, "<late>": 511}
    (tmp_path / "tokenizer_config.json").unlink()
    assert added_tokens(tmp_path) == {}
