"""The draft that is trained has the configured shape and flags, and the verifier's parts of it are frozen."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from speculators.losses import resolve_loss_config

from actors.draft_flags import configured_flags, effective_flags, flag_differences
from actors.draft_model import build_draft
from actors.draft_shapes import compare, differences, expected_shapes
from actors.verifier import read_verifier
from actors.vocabulary import Vocabulary
from conf.schema import MlaConfig
from tests.tiny_draft import TINY_DRAFT

LOSS = resolve_loss_config("kl_div", "eager")
CHOSEN = torch.arange(64) * 8  # target ids
MAPPED = Vocabulary(CHOSEN - torch.arange(64), torch.zeros(512, dtype=torch.bool).index_fill(0, CHOSEN, True), 1.0, 64)
VARIANTS: list[dict[str, Any]] = [
    {},
    {"head_dim": 32},
    {"num_layers": 2, "attention_bias": True},
    {"norm_before_residual": False},
    {"norm_before_fc": False},
    {"norm_before_fc": False, "fc_norm": True},
    {"norm_output": False},
    {"rms_norm_eps": 1e-6},
    {"aux_layers": [1, 2, 3, 4]},
    {"draft_vocab_size": 512},
    {"rope_theta": 5e4, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
]


def build(verifier: Path, *, seed: int = 0, **changes: Any) -> Any:
    cfg = replace(TINY_DRAFT, **changes)
    vocabulary = Vocabulary(None, None, 1.0, 64) if cfg.draft_vocab_size == 512 else MAPPED
    return build_draft(cfg, read_verifier(verifier), vocabulary, ttt_steps=3, attention="eager", seed=seed)


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_shape_and_every_flag_reach_the_checkpoint(changes: dict[str, Any], tiny_llama: Path, tmp_path: Path) -> None:
    """As convert checks them: what vLLM would make of the saved files."""
    cfg, verifier = replace(TINY_DRAFT, **changes), read_verifier(tiny_llama)
    build(tiny_llama, **changes).save_pretrained(tmp_path / "draft")
    assert differences(compare(tmp_path / "draft", expected_shapes(cfg, verifier))) == []
    found = effective_flags(tmp_path / "draft")
    if cfg.aux_layers == [1, 2, 3, 4]:  # convert writes this key; speculators does not
        found["num_aux_hidden_states"] = 4
    assert flag_differences(found, configured_flags(cfg, verifier)) == []


@pytest.mark.parametrize(
    ("flag", "value"),
    [("norm_before_residual", True), ("norm_before_fc", True), ("fc_norm", True), ("norm_output", True)],
)
def test_a_flag_changes_what_the_model_computes(flag: str, value: bool, tiny_llama: Path) -> None:
    """A flag that only reached config.json would be trained without."""
    off = {"norm_before_residual": False, "norm_before_fc": False, "fc_norm": False, "norm_output": False}
    torch.manual_seed(1)
    length = 12
    batch = {
        "hidden_states": torch.randn(1, length, 3 * 128),
        "input_ids": torch.randint(0, 512, (1, length)),
        "document_ids": torch.zeros(1, length, dtype=torch.long),
        "position_ids": torch.arange(1, length + 1)[None],
        "loss_mask": torch.ones(1, length, dtype=torch.bool),
        "verifier_last_hidden_states": torch.randn(1, length, 128),
    }
    losses = []
    for flags in (off, {**off, flag: value}):
        model = build(tiny_llama, **flags)
        for name, parameter in model.named_parameters():
            torch.manual_seed(len(name))  # the same weights in both, norms among them, which start as ones
            if parameter.requires_grad:
                torch.nn.init.normal_(parameter, std=0.2)
        with torch.no_grad():
            losses.append(float(model(**batch, ttt_steps=3, loss_config=LOSS)[1]))
    assert losses[0] != pytest.approx(losses[1], rel=1e-3)


def test_exactly_the_verifiers_parameters_are_frozen_and_equal_to_its_own(tiny_llama: Path) -> None:
    model = build(tiny_llama)
    frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
    assert frozen.keys() == {
        "embed_tokens.weight",
        "lm_head.weight",
        "verifier_lm_head.weight",
        "verifier_norm.weight",
    }
    verifier = load_file(tiny_llama / "model.safetensors")
    assert torch.equal(frozen["embed_tokens.weight"], verifier["model.embed_tokens.weight"].float())
    for head in ("lm_head.weight", "verifier_lm_head.weight"):
        assert torch.equal(frozen[head], verifier["lm_head.weight"].float()[CHOSEN])
    assert torch.equal(frozen["verifier_norm.weight"], verifier["model.norm.weight"].float())


@pytest.mark.parametrize("mla", [None, MlaConfig(32, 64, 32, 32, 32)])
def test_the_norm_behind_the_targets_has_the_verifiers_epsilon(
    mla: MlaConfig | None, tiny_llama: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_llama, tmp_path / "verifier"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.5}))
    heads = {"num_key_value_heads": 4, "norm_before_fc": False} if mla else {}
    model = build(folder, mla=mla, rms_norm_eps=1e-6, **heads)
    states = torch.randn(3, 128)
    expected = states / (states.pow(2).mean(-1, keepdim=True) + 0.5).sqrt() * model.verifier_norm.weight
    assert torch.allclose(model.verifier_norm(states), expected, atol=1e-5)
    assert model.norm.variance_epsilon == 1e-6


def test_the_seed_decides_the_weights(tiny_llama: Path) -> None:
    first, again, other = (build(tiny_llama, seed=seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["fc.weight"], other["fc.weight"])


def test_attention_and_ttt_steps_are_taken_over(tiny_llama: Path) -> None:
    model = build(tiny_llama)
    assert model._attn_impl == "eager"
    assert model.config.speculators_config.proposal_methods[0].speculative_tokens == 3
