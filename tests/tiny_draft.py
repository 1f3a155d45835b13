"""A tiny EAGLE-3 draft for tests, built and saved by speculators itself, as the train step leaves it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from conf.schema import DraftConfig

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


def write_tiny_draft(folder: Path, verifier: Path, **changes: Any) -> DraftConfig:
    """Write a bf16 speculators checkpoint of TINY_DRAFT with `changes` into `folder`; returns its DraftConfig."""
    import torch
    from speculators.models.eagle3.core import Eagle3DraftModel
    from transformers import AutoConfig, LlamaConfig

    cfg = replace(TINY_DRAFT, **changes)
    served = AutoConfig.from_pretrained(verifier)
    decoder = LlamaConfig(
        vocab_size=served.vocab_size,
        hidden_size=served.hidden_size,
        intermediate_size=cfg.intermediate_size,
        num_hidden_layers=cfg.num_layers,
        num_attention_heads=cfg.num_attention_heads,
        num_key_value_heads=cfg.num_key_value_heads,
        head_dim=cfg.head_dim,
        rms_norm_eps=cfg.rms_norm_eps,
        attention_bias=cfg.attention_bias,
        max_position_embeddings=cfg.max_position_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": cfg.rope_theta} | (cfg.rope_scaling or {}),
    )
    pruned = cfg.draft_vocab_size != served.vocab_size
    targets = torch.arange(cfg.draft_vocab_size) * (served.vocab_size // cfg.draft_vocab_size)
    chosen = torch.zeros(served.vocab_size, dtype=torch.bool)
    chosen[targets] = True
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Eagle3DraftModel.from_training_args(
            decoder,
            t2d=chosen if pruned else None,
            d2t=targets - torch.arange(cfg.draft_vocab_size) if pruned else None,
            draft_vocab_size=cfg.draft_vocab_size,
            norm_before_residual=cfg.norm_before_residual,
            norm_before_fc=cfg.norm_before_fc,
            fc_norm=cfg.fc_norm,
            norm_output=cfg.norm_output,
            ttt_steps=3,
            verifier_name_or_path=str(verifier),
            target_layer_ids=list(cfg.aux_layers),
            draft_attn_impl="eager",
        )
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
