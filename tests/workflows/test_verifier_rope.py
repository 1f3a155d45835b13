"""`draft.rope_theta: null` becomes the verifier's rope, in figures."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.draft_flags import rope
from actors.verifier import read_verifier
from conf.schema import DraftConfig, EyrieConfig
from tests.tiny_draft import TINY_DRAFT
from tests.tiny_kimi import ROPE, write_tiny_kimi
from workflows.errors import ConfigError
from workflows.verifier_rope import verifier_rope, with_verifier_rope


def configured(**changes: Any) -> EyrieConfig:
    return EyrieConfig(draft=replace(TINY_DRAFT, **changes))


def followed(folder: Path, **changes: Any) -> DraftConfig:
    return with_verifier_rope(configured(**changes), read_verifier(folder)).draft


def test_kimis_yarn_comes_from_the_nested_config(tmp_path: Path) -> None:
    draft = followed(write_tiny_kimi(tmp_path / "kimi"), rope_theta=None)
    assert rope(draft.rope_theta or 0, draft.rope_scaling, draft.max_position_embeddings) == ROPE


def test_a_rope_without_scaling(tiny_llama: Path) -> None:
    draft = followed(tiny_llama, rope_theta=None)
    written = json.loads((tiny_llama / "config.json").read_text())["rope_parameters"]
    assert draft.rope_theta == written["rope_theta"] and draft.rope_scaling is None


def test_figures_that_are_given_stay(tiny_llama: Path) -> None:
    scaling = {"rope_type": "yarn", "factor": 2.0}
    draft = followed(tiny_llama, rope_theta=7.0, rope_scaling=scaling)
    assert (draft.rope_theta, draft.rope_scaling) == (7.0, scaling)


def test_a_scaling_without_theta_is_refused(tiny_llama: Path) -> None:
    with pytest.raises(ConfigError, match="draft.rope_scaling: .* give both, or neither"):
        followed(tiny_llama, rope_theta=None, rope_scaling={"rope_type": "yarn", "factor": 2.0})


@pytest.mark.parametrize(
    "config",
    [{}, {"rope_parameters": {"full_attention": {"rope_theta": 1.0}, "sliding_attention": {"rope_theta": 2.0}}}],
)
def test_no_single_rope_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="has no single one; give draft.rope_theta"):
        verifier_rope(config, 1024)


@pytest.mark.parametrize(
    "config",
    [
        {"rope_theta": 5e4, "rope_scaling": {"type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096}},
        {
            "rope_theta": 5e4,
            "rope_scaling": {"rope_type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096},
        },
        {
            "rope_parameters": {
                **{"rope_type": "yarn", "rope_theta": 5e4, "factor": 64.0},
                "original_max_position_embeddings": 4096,
            }
        },
    ],
)
def test_old_and_new_spellings_are_one_rope(config: dict[str, Any]) -> None:
    expected = {"rope_type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096}
    assert verifier_rope(config, 262144) == (5e4, expected)
