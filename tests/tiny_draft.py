"""A tiny EAGLE-3 draft for tests, built and saved by speculators itself, as the train step leaves it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from actors.verifier import read_verifier
from conf.schema import DraftConfig, Naming

TINY_DRAFT = DraftConfig(
    aux_layers=[1, 2, 3],
    intermediate_size=192,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,  # times heads is twice the hidden size of the tiny verifier: as in the published Kimi drafts
    draft_vocab_size=64,
    rope_theta=10000.0,
    max_position_embeddings=1024,
)
PUBLISHED = {"norm_before_residual": False, "norm_before_fc": False, "norm_output": False}  # as AQ-MedAI's drafts


def write_tiny_draft(folder: Path, verifier: Path, **changes: Any) -> DraftConfig:
    """Write a bf16 speculators checkpoint of TINY_DRAFT with `changes` into `folder`; returns its DraftConfig."""
    import torch

    from actors.draft_model import build_draft
    from actors.vocabulary import Vocabulary

    cfg = replace(TINY_DRAFT, **changes)
    served = read_verifier(verifier)
    pruned = cfg.draft_vocab_size != served.vocab_size
    targets = torch.arange(cfg.draft_vocab_size) * (served.vocab_size // cfg.draft_vocab_size)
    chosen = torch.zeros(served.vocab_size, dtype=torch.bool)
    chosen[targets] = True
    vocabulary = Vocabulary(
        d2t=targets - torch.arange(cfg.draft_vocab_size) if pruned else None,
        t2d=chosen if pruned else None,
        coverage=1.0,
        counted=1,
    )
    with torch.random.fork_rng(devices=[]):
        model = build_draft(cfg, served, vocabulary, ttt_steps=3, attention="eager", seed=0)
        for name, parameter in model.named_parameters():
            if "norm" in name:  # else all ones, and a lost one would go unseen
                torch.nn.init.normal_(parameter, mean=1.0, std=0.1)
    model.to(torch.bfloat16).save_pretrained(folder)
    return cfg


def rewrite_tensors(folder: Path, change: Any) -> None:
    """Apply `change(tensors)`, which edits the dict in place, to the model.safetensors in `folder`."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def write_published_draft(folder: Path, verifier: Path, **changes: Any) -> DraftConfig:
    """Write folder/source, as the train step would, and folder/published: the same draft in AQ-MedAI's form.

    Its lm_head is not the verifier's rows. Its aux layers are in eagle_config only, flags that are false are left out,
    there is no t2d and no embedding.
    """
    from actors.draft_formats import write_flat

    cfg = write_tiny_draft(folder / "source", verifier, **{**PUBLISHED, **changes})
    give_own_head(folder / "source")
    out = folder / "published"
    write_flat(folder / "source", read_verifier(verifier), out, Naming.midlayer, 3)
    nested = {"eagle_aux_hidden_state_layer_ids": cfg.aux_layers, "use_aux_hidden_state": True}
    gone = ("eagle_aux_hidden_state_layer_ids", "rope_parameters", "num_speculative_tokens", "fc_norm", *PUBLISHED)
    edit_config(out, eagle_config=nested, **dict.fromkeys(gone))
    rewrite_tensors(out, lambda tensors: tensors.pop("t2d"))
    return cfg


def give_own_head(folder: Path) -> None:
    """Replace lm_head, which speculators fills with the verifier's rows, by other numbers; the same every time."""
    import torch

    def change(tensors: dict[str, torch.Tensor]) -> None:
        head = tensors["lm_head.weight"]
        head.copy_(torch.randn(head.shape, generator=torch.Generator().manual_seed(5)) * 0.1)

    rewrite_tensors(folder, change)


def edit_config(folder: Path, **changes: Any) -> None:
    """Set keys of config.json; None removes one."""
    config = json.loads((folder / "config.json").read_text()) | changes
    config = {key: value for key, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
