"""Builds speculators' EAGLE-3 draft model in the configured shape."""

from pathlib import Path
from typing import Any

import torch
from speculators.models.eagle3 import Eagle3SpeculatorConfig
from speculators.models.eagle3.core import Eagle3DraftModel
from transformers import DeepseekV3Config, LlamaConfig, PretrainedConfig

import actors.mla_draft  # noqa: F401  registers the MLA layer
from actors.verifier import Verifier
from actors.vocabulary import Vocabulary
from conf.schema import DraftConfig


def decoder_config(cfg: DraftConfig, verifier: Verifier) -> PretrainedConfig:
    """The draft's decoder layer. Nothing is derived from the verifier's head layout: head_dim is said, not guessed."""
    rope: dict[str, Any] = {"rope_type": "default", **(cfg.rope_scaling or {}), "rope_theta": cfg.rope_theta}
    common: dict[str, Any] = {
        "vocab_size": verifier.vocab_size,
        "hidden_size": verifier.hidden_size,
        "intermediate_size": cfg.intermediate_size,
        "num_hidden_layers": cfg.num_layers,
        "num_attention_heads": cfg.num_attention_heads,
        "num_key_value_heads": cfg.num_key_value_heads,
        "rms_norm_eps": cfg.rms_norm_eps,
        "rope_parameters": rope,
        "max_position_embeddings": cfg.max_position_embeddings,
        "attention_bias": cfg.attention_bias,
        "tie_word_embeddings": False,
    }
    if cfg.mla is None:
        return LlamaConfig(**common, head_dim=cfg.head_dim)
    # no layer is a mixture of experts: a draft's MLP is dense
    return DeepseekV3Config(**common, **vars(cfg.mla), first_k_dense_replace=cfg.num_layers)


def load_draft(folder: Path, *, attention: str) -> Eagle3DraftModel:
    """The fp32 model of a checkpoint that the train step left; its verifier must still lie where it did."""
    config = Eagle3SpeculatorConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = attention  # a checkpoint does not keep it
    return Eagle3DraftModel.from_pretrained(folder, config=config).float().eval()


def build_draft(
    cfg: DraftConfig,
    verifier: Verifier,
    vocabulary: Vocabulary,
    *,
    ttt_steps: int,
    attention: str,
    seed: int,
) -> Eagle3DraftModel:
    """A fresh draft with the verifier's embedding, lm_head rows and final norm, all frozen."""
    torch.manual_seed(seed)
    model = Eagle3DraftModel.from_training_args(
        decoder_config(cfg, verifier),
        t2d=vocabulary.t2d,
        d2t=vocabulary.d2t,
        draft_vocab_size=cfg.draft_vocab_size,
        norm_before_residual=cfg.norm_before_residual,
        norm_before_fc=cfg.norm_before_fc,
        fc_norm=cfg.fc_norm,
        norm_output=cfg.norm_output,
        ttt_steps=ttt_steps,
        verifier_name_or_path=verifier.path,
        target_layer_ids=list(cfg.aux_layers),
        draft_attn_impl=attention,
    )
    # the norm behind the targets is the verifier's; speculators 0.9 gives it the draft's epsilon
    model.verifier_norm.variance_epsilon = verifier.rms_norm_eps
    return model
