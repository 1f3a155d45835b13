"""A tiny Kimi-K2.5 for tests: random weights in its own architecture (MLA, mixture of experts), text tower only.

As much as vLLM runs on a CPU: kv_lora_rank 512 and qk_rope_head_dim 64 are the only ones its CPU MLA has, experts are
bf16 (INT4 experts need a GPU), vision weights are left out (`language_model_only` builds no tower). Names, nesting and
`media_placeholder_token_id` are those of the released checkpoint.
"""

import json
from pathlib import Path
from typing import Any

from tests.tiny import write_tiny_tokenizer

HIDDEN, LAYERS, HEADS, VOCAB, INNER, EXPERT_INNER, EXPERTS = 128, 4, 4, 512, 256, 64, 8
MLA = {"q_lora_rank": 64, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
ROPE = {
    **{"rope_theta": 50000.0, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256},
    **{"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0},
}
TEXT = {
    **{"model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": HIDDEN},
    **{"intermediate_size": INNER, "moe_intermediate_size": EXPERT_INNER, "num_hidden_layers": LAYERS},
    **{"num_attention_heads": HEADS, "num_key_value_heads": HEADS, **MLA},
    **{"n_routed_experts": EXPERTS, "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1},
    **{"moe_layer_freq": 1, "n_group": 1, "topk_group": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid"},
    **{"norm_topk_prob": True, "routed_scaling_factor": 2.827, "hidden_act": "silu", "rms_norm_eps": 1e-5},
    **{"vocab_size": VOCAB, "max_position_embeddings": 1024, "rope_theta": 50000.0, "tie_word_embeddings": False},
    "rope_scaling": {"type": "yarn", **{k: v for k, v in ROPE.items() if k not in ("rope_theta", "rope_type")}},
    **{"torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2, "num_nextn_predict_layers": 0},
}
VISION = {
    **{"patch_size": 14, "init_pos_emb_height": 8, "init_pos_emb_width": 8, "init_pos_emb_time": 4},
    **{"pos_emb_type": "divided_fixed", "vt_num_attention_heads": 2, "vt_num_hidden_layers": 1, "vt_hidden_size": 32},
    **{"vt_intermediate_size": 64, "merge_kernel_size": [2, 2], "video_attn_type": "spatial_temporal"},
    **{"merge_type": "sd2_tpool", "mm_projector_type": "patchmerger", "mm_hidden_size": 32},
    **{"projector_hidden_act": "gelu", "projector_ln_eps": 1e-5, "text_hidden_size": HIDDEN},
}
CONFIG = {
    **{"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25"},
    **{"text_config": TEXT, "vision_config": VISION, "media_placeholder_token_id": 500, "image_token_id": 500},
    **{"pad_token_id": 0, "ignore_index": -100, "tie_word_embeddings": False, "torch_dtype": "bfloat16"},
    **{"bos_token_id": 1, "eos_token_id": 2},
}
MEDIA = {  # vLLM builds the image processor in text-only mode too
    **{"patch_size": 14, "merge_kernel_size": 2, "temporal_merge_kernel_size": 4, "in_patch_limit": 64},
    **{"patch_limit_on_one_side": 8, "in_patch_limit_each_frame": None, "in_patch_limit_video": None},
    **{"fixed_output_tokens": None, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]},
}


def write_tiny_kimi(folder: Path, *, seed: int = 0) -> Path:
    """Write the checkpoint with tokenizer and chat template; returns `folder`. Same arguments, same weights."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1))
    (folder / "preprocessor_config.json").write_text(json.dumps({"media_proc_cfg": MEDIA}))
    save_file(_tensors(seed), folder / "model.safetensors", metadata={"format": "pt"})
    return write_tiny_tokenizer(folder, vocab=VOCAB)


def _tensors(seed: int) -> dict[str, Any]:
    import torch

    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int, std: float = 0.05) -> Any:
        return (torch.randn(*shape, generator=generator) * std).to(torch.bfloat16)

    def ones(n: int) -> Any:
        return torch.ones(n, dtype=torch.bfloat16)

    def mlp(inner: int) -> dict[str, Any]:
        return {
            "gate_proj": drawn(inner, HIDDEN),
            "up_proj": drawn(inner, HIDDEN),
            "down_proj": drawn(HIDDEN, inner),
        }

    per_head = MLA["qk_nope_head_dim"] + MLA["qk_rope_head_dim"]
    out: dict[str, Any] = {"model.embed_tokens": drawn(VOCAB, HIDDEN, std=1.0), "model.norm": ones(HIDDEN)}
    out["lm_head"] = drawn(VOCAB, HIDDEN, std=0.3)
    for i in range(LAYERS):
        layer: dict[str, Any] = {
            "input_layernorm": ones(HIDDEN),
            "post_attention_layernorm": ones(HIDDEN),
            "self_attn.q_a_proj": drawn(MLA["q_lora_rank"], HIDDEN),
            "self_attn.q_a_layernorm": ones(MLA["q_lora_rank"]),
            "self_attn.q_b_proj": drawn(HEADS * per_head, MLA["q_lora_rank"]),
            "self_attn.kv_a_proj_with_mqa": drawn(MLA["kv_lora_rank"] + MLA["qk_rope_head_dim"], HIDDEN),
            "self_attn.kv_a_layernorm": ones(MLA["kv_lora_rank"]),
            "self_attn.kv_b_proj": drawn(HEADS * (MLA["qk_nope_head_dim"] + MLA["v_head_dim"]), MLA["kv_lora_rank"]),
            "self_attn.o_proj": drawn(HIDDEN, HEADS * MLA["v_head_dim"]),
        }
        if i < TEXT["first_k_dense_replace"]:
            layer |= {f"mlp.{name}": tensor for name, tensor in mlp(INNER).items()}
        else:
            layer["mlp.gate"] = drawn(EXPERTS, HIDDEN)
            layer |= {f"mlp.shared_experts.{name}": tensor for name, tensor in mlp(EXPERT_INNER).items()}
            for expert in range(EXPERTS):
                layer |= {f"mlp.experts.{expert}.{name}": t for name, t in mlp(EXPERT_INNER).items()}
        out |= {f"model.layers.{i}.{name}": tensor for name, tensor in layer.items()}
    named = {f"language_model.{name}.weight": tensor for name, tensor in out.items()}
    for i in range(TEXT["first_k_dense_replace"], LAYERS):
        named[f"language_model.model.layers.{i}.mlp.gate.e_score_correction_bias"] = torch.zeros(EXPERTS)
    return named
