"""Going on from a published draft: the model computes what it computed, its targets stay the verifier's, and what does
not fit is refused with the key to change."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from actors.draft_formats import write_flat, write_speculators
from actors.draft_import import check_start, read_draft
from actors.draft_model import build_draft, load_draft
from actors.draft_start import start_from, start_vocabulary
from actors.verifier import read_verifier
from conf.schema import DraftConfig, MlaConfig, Naming
from tests.tiny import write_tiny_llama
from tests.tiny_draft import (
    PUBLISHED,
    TINY_DRAFT,
    edit_config,
    give_own_head,
    rewrite_tensors,
    write_published_draft,
    write_tiny_draft,
)

KEY = "train.init_from"
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
MLA = {
    **{"mla": MlaConfig(96, 64, 32, 16, 48), "head_dim": 48, "num_key_value_heads": 4, "norm_before_fc": False},
    **{"fc_norm": True},
}
VARIANTS: list[dict[str, Any]] = [
    PUBLISHED,
    {},
    {"num_layers": 2, "attention_bias": True},
    {"norm_before_fc": False, "fc_norm": True, "aux_layers": [1, 2, 3, 4]},
    {"draft_vocab_size": 512},
    {"rope_theta": 5e4, "rope_scaling": YARN},
    MLA,
]


@pytest.fixture
def flat(tiny_llama: Path, tmp_path: Path) -> Path:
    """A whole published draft of the tiny verifier, of the shape TINY_DRAFT with PUBLISHED flags."""
    write_published_draft(tmp_path, tiny_llama)
    return tmp_path / "published"


def imported(folder: Path, cfg: DraftConfig, verifier: Path) -> Any:
    """The model with which a training that goes on from `folder` begins."""
    served = read_verifier(verifier)
    check_start(KEY, folder, cfg, served)
    vocabulary = start_vocabulary(folder, Counter({5: 3, 8: 1}), served.vocab_size)
    model = build_draft(cfg, served, vocabulary, ttt_steps=3, attention="eager", seed=7)
    start_from(model, folder)
    return model


def drafted(model: Any, aux: int) -> list[torch.Tensor]:
    """Draft tokens of three steps on fixed states."""
    generator = torch.Generator().manual_seed(2)
    length = 24
    with torch.no_grad():
        return model(
            hidden_states=torch.randn(1, length, aux * 128, generator=generator),
            input_ids=torch.randint(0, 512, (1, length), generator=generator),
            document_ids=torch.zeros(1, length, dtype=torch.long),
            ttt_steps=3,
        )


@pytest.mark.parametrize("form", ["midlayer", "layers", "speculators", "trained"])
@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_the_model_computes_what_the_draft_computed(
    changes: dict[str, Any], form: str, tiny_llama: Path, tmp_path: Path
) -> None:
    if (
        form == "midlayer"
        and changes.get("num_layers", 1) > 1
        or form in ("speculators", "trained")
        and "mla" in changes
    ):
        pytest.skip("there is no such checkpoint")
    cfg, verifier = write_tiny_draft(tmp_path / "draft", tiny_llama, **changes), read_verifier(tiny_llama)
    give_own_head(tmp_path / "draft")
    source = tmp_path / ("draft" if form == "trained" else "out")
    if form == "speculators":
        write_speculators(tmp_path / "draft", verifier, source, 3)
    elif form != "trained":
        write_flat(tmp_path / "draft", verifier, source, Naming(form), 3)
    model, original = imported(source, cfg, tiny_llama), load_draft(tmp_path / "draft", attention="eager")
    wanted = dict(original.named_parameters())
    for name, parameter in model.named_parameters():
        assert parameter.dtype == torch.float32 and torch.equal(parameter, wanted[name]), name
    one, other = (drafted(m, len(cfg.aux_layers)) for m in (model, original))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert len(set(one[0].flatten().tolist())) > 3
    if cfg.draft_vocab_size == 512:
        assert model.t2d is None and model.d2t is None
    else:
        assert torch.equal(model.d2t, original.d2t) and torch.equal(model.t2d, original.t2d)


def test_a_published_config_and_file_are_enough_and_targets_stay_the_verifiers(flat: Path, tiny_llama: Path) -> None:
    model = imported(flat, replace(TINY_DRAFT, **PUBLISHED), tiny_llama)
    original = load_draft(flat.parent / "source", attention="eager")
    assert all(torch.equal(a, b) for a, b in zip(drafted(model, 3), drafted(original, 3), strict=True))
    served, chosen = load_file(tiny_llama / "model.safetensors"), torch.arange(64) * 8
    assert torch.equal(model.verifier_lm_head.weight, served["lm_head.weight"].float()[chosen])
    assert torch.equal(model.verifier_norm.weight, served["model.norm.weight"].float())
    assert torch.equal(model.embed_tokens.weight, served["model.embed_tokens.weight"].float())
    assert not torch.equal(model.lm_head.weight, model.verifier_lm_head.weight)
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen == {"embed_tokens.weight", "lm_head.weight", "verifier_lm_head.weight", "verifier_norm.weight"}


def test_an_embedding_of_its_own_is_taken_over(flat: Path, tiny_llama: Path) -> None:
    own = torch.randn(512, 128, generator=torch.Generator().manual_seed(9)).bfloat16()
    rewrite_tensors(flat, lambda tensors: tensors.update({"embed_tokens.weight": own}))
    model = imported(flat, replace(TINY_DRAFT, **PUBLISHED), tiny_llama)
    assert torch.equal(model.embed_tokens.weight, own.float()) and not model.embed_tokens.weight.requires_grad


def test_the_vocabulary_is_the_drafts_and_its_coverage_ours(flat: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Every eighth token is in it, whatever was counted; a kept token cannot be added."""
    found = start_vocabulary(flat, Counter({8: 6, 16: 1, 9: 3}), 512, kept=(16, 17))
    assert found.t2d is not None and found.t2d.nonzero().flatten().tolist() == list(range(0, 512, 8))
    assert (found.coverage, found.counted) == (0.7, 10)
    assert "[17]" in caplog.text and "[16" not in caplog.text
    with pytest.raises(ValueError, match="no supervised token"):
        start_vocabulary(flat, Counter(), 512)


Change = Callable[[Path], None]
CONFIGURED: list[tuple[dict[str, Any], list[str]]] = [
    ({"norm_before_residual": True}, ["draft.norm_before_residual=false  (now true)"]),
    ({"aux_layers": [1, 2, 4]}, ["'draft.aux_layers=[1,2,3]'  (now [1,2,4])"]),
    ({"aux_layers": [1, 2, 3, 4]}, ["'draft.aux_layers=[1,2,3]'  (now [1,2,3,4])"]),
    ({"draft_vocab_size": 32, "head_dim": 32}, ["draft.draft_vocab_size=64  (now 32)", "draft.head_dim=64  (now 32)"]),
    (
        {"rope_theta": 5e4, "rope_scaling": YARN},
        ["draft.rope_theta=10000.0  (now 50000.0)", "draft.rope_scaling=null  (now {rope_type:yarn,factor:4.0,"],
    ),
]


@pytest.mark.parametrize(("changes", "parts"), CONFIGURED, ids=str)
def test_each_key_that_differs_is_named_with_the_value_to_set(
    changes: dict[str, Any], parts: list[str], flat: Path, tiny_llama: Path
) -> None:
    with pytest.raises(ValueError, match="train.init_from: .* is another draft than is configured") as raised:
        check_start(KEY, flat, replace(TINY_DRAFT, **{**PUBLISHED, **changes}), read_verifier(tiny_llama))
    first, *lines = str(raised.value).splitlines()
    assert len(lines) == len(parts)
    for line, part in zip(lines, parts, strict=True):
        assert part in line


def test_the_context_it_was_trained_for_matters_only_where_rope_is_scaled(
    flat: Path, tiny_llama: Path, tmp_path: Path
) -> None:
    edit_config(flat, max_position_embeddings=4096)
    check_start(KEY, flat, replace(TINY_DRAFT, **PUBLISHED), read_verifier(tiny_llama))
    scaling = {"rope_type": "yarn", "factor": 4.0}
    edit_config(flat, rope_scaling=scaling)
    with pytest.raises(ValueError, match="draft.rope_scaling={rope_type:yarn,.*original_max_position_embeddings:4096}"):
        check_start(KEY, flat, replace(TINY_DRAFT, **PUBLISHED, rope_scaling=scaling), read_verifier(tiny_llama))


def tensors(change: Callable[[dict[str, torch.Tensor]], Any]) -> Change:
    return lambda folder: rewrite_tensors(folder, change)


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def sharded(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")


def swapped(tensors: dict[str, torch.Tensor]) -> None:
    """Draft ids 0 and 1 stand for tokens 8 and 0."""
    tensors["d2t"][0], tensors["d2t"][1] = 8, -1


def absolute(tensors: dict[str, torch.Tensor]) -> None:
    """d2t holds target ids instead of offsets."""
    tensors["d2t"] += torch.arange(64)


REFUSED: list[tuple[Change, str]] = [
    (pickled, r"has no model.safetensors, but pytorch_model.bin. Convert it: python -c .*save_file\(torch.load\("),
    (sharded, "but model-00001-of-00001.safetensors. Merge its files into one model.safetensors"),
    (lambda folder: (folder / "model.safetensors").unlink(), "but no weights. Download the draft again"),
    (lambda folder: (folder / "config.json").unlink(), "has no config.json. Give the folder of an EAGLE-3 draft"),
    (lambda folder: (folder / "config.json").write_text("{"), "cannot be read .*Copy it"),
    (lambda folder: edit_config(folder, intermediate_size=None), "has no key 'intermediate_size'; give"),
    (
        lambda folder: edit_config(folder, model_type="gpt2"),
        "gpt2 LlamaForCausalLMEagle3 is no EAGLE-3 draft that is known",
    ),
    (
        lambda folder: edit_config(folder, layer_types=["sliding_attention"]),
        "1 layers of .* have a sliding window, .* Use a draft without one",
    ),
    (tensors(lambda found: found.pop("norm.weight")), r"(?s)norm.weight .* missing\nDownload it again"),
    (tensors(lambda found: found.pop("d2t")), "(?s)d2t .* missing"),
    (tensors(lambda found: found.update(extra=torch.zeros(2))), r"(?s)extra +\[2\] +- +unexpected"),
    (tensors(swapped), r"not ascending \(draft ids 0 and 1 are tokens 8 and 0\).* Sort d2t"),
    (tensors(absolute), "names tokens 0 to 567, and the verifier has 512; use a draft whose d2t holds target id minus"),
    (
        tensors(lambda found: found.update(t2d=torch.ones(512, dtype=torch.bool))),
        "d2t and t2d of .* name different tokens",
    ),
    (lambda folder: (folder / "model.safetensors").write_bytes(b"version https://git-lfs"), "is no safetensors file"),
]


@pytest.mark.parametrize(("spoil", "message"), REFUSED, ids=[message[:40] for _, message in REFUSED])
def test_what_training_cannot_go_on_from_is_refused(spoil: Change, message: str, flat: Path, tiny_llama: Path) -> None:
    spoil(flat)
    with pytest.raises(ValueError, match=message) as raised:
        check_start(KEY, flat, replace(TINY_DRAFT, **PUBLISHED), read_verifier(tiny_llama))
    assert str(raised.value).startswith(f"{KEY}: ") and "verifier.source" not in str(raised.value)


def test_a_draft_of_another_verifier_is_refused(flat: Path, tiny_llama: Path, tmp_path: Path) -> None:
    wide = read_verifier(write_tiny_llama(tmp_path / "wide", hidden=192))
    with pytest.raises(ValueError, match=r"hidden size 128, the verifier's 192; use a draft of this verifier"):
        read_draft(KEY, flat, wide)
    served = read_verifier(write_tiny_llama(tmp_path / "small", layers=2))
    with pytest.raises(ValueError, match=rf"{KEY}: layer ids \[3\], read as vllm's, are no .* of 2 layers"):
        read_draft(KEY, flat, served)
    with pytest.raises(ValueError, match=r"vocabulary 512, the verifier's 500; use a draft of this verifier"):
        read_draft(KEY, flat, replace(read_verifier(tiny_llama), vocab_size=500))
