"""A Kimi-K2 verifier serves speculators through a native folder; the last test says when that can go."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, DeepseekV3Config

from actors.draft_model import build_draft
from actors.native_verifier import check_model_type, folder_for_speculators
from actors.train_job import TrainJob
from actors.train_loop import _verifier
from actors.verifier import Verifier, read_verifier
from actors.vocabulary import Vocabulary
from conf.schema import TrainConfig
from tests.tiny import write_tiny_llama, write_tiny_tokenizer
from tests.tiny_draft import TINY_DRAFT
from tests.tiny_kimi import CONFIG, HIDDEN, TEXT, VOCAB

CHOSEN = torch.arange(64) * 8
VOCABULARY = Vocabulary(
    CHOSEN - torch.arange(64), torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, CHOSEN, True), 1, 1
)
REMOTE = {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}


def write_kimi_k2(folder: Path, *, tied: bool = False, **changes: object) -> Verifier:
    """Kimi-K2's layout with the only tensors that anyone reads here, in two files."""
    folder.mkdir(exist_ok=True)
    config = {**TEXT, "tie_word_embeddings": tied, "quantization_config": {"quant_method": "fp8"}, "auto_map": REMOTE}
    (folder / "config.json").write_text(json.dumps(config | changes))
    torch.manual_seed(0)
    first = {"model.embed_tokens.weight": torch.randn(VOCAB, HIDDEN).bfloat16()}
    second = {"model.norm.weight": torch.randn(HIDDEN).bfloat16(), "model.layers.0.x.weight": torch.ones(1)}
    if not tied:
        second["lm_head.weight"] = torch.randn(VOCAB, HIDDEN).bfloat16()
    save_file(first, folder / "a.safetensors")
    save_file(second, folder / "b.safetensors")
    names = {name: "a.safetensors" for name in first} | {name: "b.safetensors" for name in second}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    write_tiny_tokenizer(folder, vocab=VOCAB)
    return read_verifier(folder)


def test_a_native_verifier_is_read_where_it_lies(tiny_llama: Path, tmp_path: Path) -> None:
    verifier = read_verifier(tiny_llama)
    assert folder_for_speculators(verifier, tmp_path) == verifier.path
    shutil.copytree(tiny_llama, tmp_path / "k25")
    (tmp_path / "k25" / "config.json").write_text(json.dumps(CONFIG))
    assert folder_for_speculators(replace(verifier, path=str(tmp_path / "k25")), tmp_path) == str(tmp_path / "k25")
    assert not (tmp_path / "verifier").exists()


def test_kimi_k2_gets_a_native_folder_of_three_tensors_written_once(tmp_path: Path) -> None:
    verifier = write_kimi_k2(tmp_path / "k2")
    folder = Path(folder_for_speculators(verifier, tmp_path))
    assert folder == tmp_path / "verifier"
    config = AutoConfig.from_pretrained(folder)
    assert type(config) is DeepseekV3Config and config.architectures == ["DeepseekV3ForCausalLM"]
    assert config.num_hidden_layers == 4 and config.rope_parameters["rope_type"] == "yarn"
    read = json.loads((folder / "config.json").read_text())
    assert "auto_map" not in read and "quantization_config" not in read
    found = load_file(folder / "model.safetensors")
    theirs = load_file(tmp_path / "k2" / "a.safetensors") | load_file(tmp_path / "k2" / "b.safetensors")
    assert found.keys() == {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"}
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in found.items())
    before = {file: file.stat().st_mtime_ns for file in folder.iterdir()}
    assert folder_for_speculators(verifier, tmp_path) == str(folder)
    assert {file: file.stat().st_mtime_ns for file in folder.iterdir()} == before
    assert not list(tmp_path.glob(".tmp-*"))


def test_a_draft_is_built_from_kimi_k2_with_its_rows_norm_and_epsilon(tmp_path: Path) -> None:
    verifier = write_kimi_k2(tmp_path / "k2")
    cfg = replace(TINY_DRAFT, rms_norm_eps=1e-6)
    job = TrainJob(TrainConfig(epochs=1, lr=1), cfg, verifier, (), frozenset(), frozenset(), str(tmp_path))
    native = _verifier(job, rank=0)  # as a worker does before it builds the draft
    model = build_draft(cfg, native, VOCABULARY, ttt_steps=3, attention="eager", seed=0)
    theirs = load_file(tmp_path / "k2" / "b.safetensors")
    assert torch.equal(model.verifier_lm_head.weight, theirs["lm_head.weight"][CHOSEN].float())
    assert torch.equal(model.verifier_norm.weight, theirs["model.norm.weight"].float())
    assert model.verifier_norm.variance_epsilon == 1e-5 and model.norm.variance_epsilon == 1e-6
    model.save_pretrained(tmp_path / "draft")
    described = json.loads((tmp_path / "draft" / "config.json").read_text())["speculators_config"]["verifier"]
    assert described["name_or_path"] == str(tmp_path / "verifier")  # write_speculators names the real one


def test_a_tied_kimi_k2_has_no_lm_head_to_copy(tmp_path: Path) -> None:
    verifier = write_kimi_k2(tmp_path / "k2", tied=True)
    folder = Path(folder_for_speculators(verifier, tmp_path))
    assert load_file(folder / "model.safetensors").keys() == {"model.embed_tokens.weight", "model.norm.weight"}


def test_another_unknown_model_type_is_refused_with_what_to_do(tmp_path: Path) -> None:
    verifier = write_kimi_k2(tmp_path / "k2", model_type="condor")
    for refused in (lambda: check_model_type(verifier), lambda: folder_for_speculators(verifier, tmp_path)):
        with pytest.raises(ValueError, match=r"verifier\.source: .*model_type 'condor'.*transformers 5.*Use a"):
            refused()
    assert not (tmp_path / "verifier").exists()


def test_the_workaround_is_needed_while_autoconfig_does_not_read_kimi_k2(tmp_path: Path) -> None:
    """When this fails, remove DEEPSEEK_ALIKE, and native_verifier.py with it."""
    write_kimi_k2(tmp_path)
    with pytest.raises(ValueError, match="trust_remote_code"):
        AutoConfig.from_pretrained(tmp_path, trust_remote_code=False)
    write_kimi_k2(tmp_path, auto_map={})
    with pytest.raises(ValueError, match="kimi_k2"):
        AutoConfig.from_pretrained(tmp_path)
    AutoConfig.from_pretrained(write_tiny_llama(tmp_path / "llama"))  # what fails above is the model type
