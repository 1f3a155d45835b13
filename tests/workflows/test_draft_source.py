"""Published drafts as inputs of steps: content is identity and a path is not, and what does not fit is refused."""

import inspect
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import huggingface_hub
import pytest

from actors.shards import ManifestRow
from actors.verifier import read_verifier
from conf.schema import ClusterConfig, EyrieConfig, LayerIds
from tests.composed import typed
from tests.tiny import write_tiny_llama
from tests.tiny_draft import PUBLISHED, edit_config, rewrite_tensors, write_published_draft
from tests.tiny_run import overrides, run
from workflows import config
from workflows.cluster import Session
from workflows.draft_source import PublishedDraft
from workflows.eagle3 import build_steps
from workflows.errors import ConfigError
from workflows.steps.benchmark import benchmark
from workflows.steps.train import train

KEYS = {"train": "init_from", "benchmark": "reference_draft"}
IDS = {"train": "init_layer_ids", "benchmark": "reference_layer_ids"}
SHAPE = {"num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 64}  # as tests/tiny_run.py has it
TELL_SAME = (LayerIds.sglang, LayerIds.torchspec)
AS_PUBLISHED = [f"draft.{name}=false" for name in PUBLISHED]


@pytest.fixture
def published(tiny_llama: Path, tmp_path: Path) -> Path:
    write_published_draft(tmp_path / "theirs", tiny_llama, **SHAPE)
    return tmp_path / "theirs" / "published"


@pytest.fixture
def cfg(tiny_llama: Path, tmp_path: Path) -> EyrieConfig:
    """A configuration whose draft has the published one's shape and flags."""
    return config.on_this_machine(typed(*overrides(tmp_path, tiny_llama, *AS_PUBLISHED)))


def with_draft(cfg: EyrieConfig, section: str, source: Path | str) -> EyrieConfig:
    return replace(cfg, **{section: replace(getattr(cfg, section), **{KEYS[section]: str(source)})})


def with_ids(cfg: EyrieConfig, section: str, ids: LayerIds) -> EyrieConfig:
    return replace(cfg, **{section: replace(getattr(cfg, section), **{IDS[section]: ids})})


def fingerprints(cfg: EyrieConfig) -> dict[str, str]:
    steps = build_steps(cfg, read_verifier(cfg.verifier.source), Session(ClusterConfig()))
    return {step.name: step.fingerprint for step in steps}


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in before if before[name] != after[name]}


@pytest.mark.parametrize(
    ("section", "reruns"), [("train", {"train", "convert", "benchmark"}), ("benchmark", {"benchmark"})]
)
def test_content_is_identity_and_the_path_is_not(
    section: str, reruns: set[str], published: Path, cfg: EyrieConfig, tmp_path: Path
) -> None:
    without, given = fingerprints(cfg), fingerprints(with_draft(cfg, section, published))
    assert changed(without, given) == reruns
    shutil.copytree(published, tmp_path / "elsewhere")
    assert fingerprints(with_draft(cfg, section, tmp_path / "elsewhere")) == given
    rewrite_tensors(tmp_path / "elsewhere", lambda tensors: tensors["fc.weight"].neg_())
    other = fingerprints(with_draft(cfg, section, tmp_path / "elsewhere"))
    assert changed(given, other) == reruns
    edit_config(published, max_position_embeddings=999)
    assert changed(given, fingerprints(with_draft(cfg, section, published))) == reruns


@pytest.mark.parametrize("section", ["train", "benchmark"])
def test_whose_layer_ids_a_draft_has_is_identity_where_it_changes_what_they_mean(
    section: str, published: Path, cfg: EyrieConfig
) -> None:
    edit_config(published, eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 1, 2]})
    with pytest.raises(ValueError) if section == "train" else nullcontext():
        fingerprints(with_draft(cfg, section, published))  # as vLLM reads it, it is no draft with aux layers 1, 2, 3
    found = [fingerprints(with_ids(with_draft(cfg, section, published), section, ids)) for ids in TELL_SAME]
    assert found[0] == found[1]
    if section == "benchmark":
        assert changed(found[0], fingerprints(with_draft(cfg, section, published))) == {"benchmark"}


@pytest.mark.parametrize(("section", "function"), [("train", train), ("benchmark", benchmark)])
def test_the_folder_reaches_its_step(
    section: str,
    function: Callable[..., Any],
    published: Path,
    cfg: EyrieConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def called(*args: Any) -> dict[str, Any]:
        return dict(inspect.signature(function).bind(*args).arguments)

    monkeypatch.setattr(f"workflows.eagle3.{section}", called)
    monkeypatch.setattr("workflows.eagle3.held_out", lambda *_: "not asked for")
    folders = {name: tmp_path / name for name in ("prompts", "extract", "train", "convert")}
    for source, wanted in ((None, None), (published, published.resolve())):
        given = with_draft(cfg, section, source) if source else cfg
        (step,) = (s for s in build_steps(given, read_verifier(cfg.verifier.source), Mock()) if s.name == section)
        found = step.run(folders, tmp_path / "out")
        draft = found["init_from" if section == "train" else "reference"]
        assert (draft.folder if isinstance(draft, PublishedDraft) else draft) == wanted
        assert found["prompts_out"] == folders["prompts"] and found["out"] == tmp_path / "out"


@pytest.mark.parametrize("section", KEYS)
def test_a_hub_id_comes_from_the_cache(
    section: str, published: Path, cfg: EyrieConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    revision, repo = "0123456789abcdef0123456789abcdef01234567", tmp_path / "hub" / "models--nest--draft"
    shutil.copytree(published, repo / "snapshots" / revision)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(revision)
    local = fingerprints(with_draft(cfg, section, published))
    assert fingerprints(with_draft(cfg, section, "nest/draft")) == local
    key = f"{section}.{KEYS[section]}"
    with pytest.raises(
        ValueError, match=rf"{key}: cannot get 'nest/absent' from the hub: .* give its folder as {key}\."
    ):
        fingerprints(with_draft(cfg, section, "nest/absent"))
    with pytest.raises(ValueError, match=rf"{key}: there is no folder .*absent. Give a checkpoint folder, or a hub id"):
        fingerprints(with_draft(cfg, section, tmp_path / "absent"))


@pytest.mark.parametrize("section", KEYS)
@pytest.mark.parametrize(("size", "what"), [({"hidden": 192}, "hidden size 128"), ({"vocab": 400}, "vocabulary 512")])
def test_a_draft_of_another_verifier_stops_the_run_before_anything_starts(
    section: str, size: dict[str, int], what: str, published: Path, tmp_path: Path
) -> None:
    other = write_tiny_llama(tmp_path / "other", **size)
    key = f"{section}.{KEYS[section]}"
    with pytest.raises(ConfigError, match=f"{key}: .* has {what}, the verifier's .*; use a draft of this verifier"):
        run(tmp_path, other, f"{key}={published}")
    assert not list((tmp_path / "root").glob("*/*"))


def test_a_start_must_be_of_the_configured_shape_and_a_reference_need_not(
    published: Path, cfg: EyrieConfig, tmp_path: Path, tiny_llama: Path
) -> None:
    wide = replace(cfg, draft=replace(cfg.draft, intermediate_size=96, norm_output=True))
    fingerprints(with_draft(wide, "benchmark", published))
    with pytest.raises(ValueError, match=r"(?s)draft.norm_output=false.*draft.intermediate_size=64  \(now 96\)"):
        fingerprints(with_draft(wide, "train", published))
    rewrite_tensors(published, lambda tensors: tensors.pop("norm.weight"))
    with pytest.raises(ValueError, match="(?s)benchmark.reference_draft: the tensors of .*norm.weight"):
        fingerprints(with_draft(wide, "benchmark", published))


def test_weights_that_are_not_finite_end_training_before_it_starts(
    published: Path, cfg: EyrieConfig, tmp_path: Path, tiny_llama: Path
) -> None:
    rewrite_tensors(published, lambda tensors: tensors["fc.weight"].fill_(float("nan")))
    (tmp_path / "extract").mkdir()
    row = ManifestRow(0, "part-0.parquet", 1, 1, "", "c", 1, 1, 1)
    (tmp_path / "extract" / "part-0.json").write_text(row.dumps())

    def fit(_: object) -> None:
        raise AssertionError("it started")

    with pytest.raises(ConfigError, match="train.init_from: .*fc.weight has values that are not finite.* Use another"):
        verifier, here = read_verifier(tiny_llama), tmp_path
        train(cfg.train, cfg.draft, verifier, [], published, here / "prompts", here / "extract", fit, here / "out")
