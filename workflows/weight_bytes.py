"""How large a verifier's weights are: from its files, else from its index, else computed from its config (pure).

Computed is good to a few parts in a thousand: biases, the scales of FP8 blocks beside their weights and the shapes of
packed tensors are small. A vision tower is not counted, since Eyrie's engines run the text part.
"""

import json
from pathlib import Path
from typing import Any

from actors.checkpoint_folder import INDEX
from actors.verifier import text_config

COMPUTABLE = ("llama", "mistral", "qwen2", "qwen3", "deepseek_v2", "deepseek_v3", "kimi_k2")  # model_type
FLOAT_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
SCALE_BYTES = 2  # bf16, one for each group of a packed weight
FP8_BLOCK = 128 * 128  # weights that share one fp32 scale


def stored_bytes(folder: Path) -> tuple[int, str] | None:
    """Bytes and where they come from; None when the folder holds neither weights nor an index that counts them."""
    index = folder / INDEX
    if index.exists():
        try:
            read = json.loads(index.read_text())
            files = [folder / name for name in sorted(set(read["weight_map"].values()))]
            counted = read.get("metadata", {}).get("total_size")
        except (ValueError, KeyError, AttributeError) as error:
            raise ValueError(f"verifier.source: {index} cannot be read ({error!r}). Copy it again.") from error
        if not all(file.exists() for file in files):
            return (int(counted), f"as {INDEX} says") if counted else None
    else:
        files = sorted(folder.glob("*.safetensors"))
    return (sum(file.stat().st_size for file in files), "as its files have") if files else None


def quantisation(config: dict[str, Any]) -> dict[str, Any]:
    """`quantization_config`, wherever a config.json has it; empty when the weights are plain floats."""
    return text_config(config).get("quantization_config") or config.get("quantization_config") or {}


def element_bytes(config: dict[str, Any]) -> int:
    """Bytes of a weight that is not quantised."""
    text = text_config(config)
    keys = (text.get("dtype"), text.get("torch_dtype"), config.get("dtype"), config.get("torch_dtype"))
    return FLOAT_BYTES.get(next((key for key in keys if key), "bfloat16"), 2)


def computed_bytes(config: dict[str, Any]) -> int:
    """Bytes of the weights that a config.json describes. ValueError where that cannot be told from it."""
    text, quantised, plain = text_config(config), quantisation(config), element_bytes(config)
    if (kind := text.get("model_type")) not in COMPUTABLE:
        raise ValueError(_unknown(f"model_type {kind!r} is none of {', '.join(COMPUTABLE)}"))
    experts, matrices, others = _routed_experts(text), _matrices(text), _others(text)
    method = quantised.get("quant_method")
    if method is None:
        return (experts + matrices + others) * plain
    if method == "fp8":
        return (experts + matrices) + 4 * (experts + matrices) // FP8_BLOCK + others * plain
    if method != "compressed-tensors" or quantised.get("format") != "pack-quantized":
        raise ValueError(_unknown(f"quantization {method} {quantised.get('format', '')}".strip()))
    if not experts or not any("self_attn" in name for name in quantised.get("ignore", [])):
        raise ValueError(_unknown("its packed weights are not the routed experts alone"))
    weights = next(iter(quantised["config_groups"].values()))["weights"]
    packed = experts * weights["num_bits"] // 8 + experts // weights["group_size"] * SCALE_BYTES
    return packed + (matrices + others) * plain


def _routed_experts(text: dict[str, Any]) -> int:
    if not text.get("n_routed_experts"):
        return 0
    return _expert_layers(text) * text["n_routed_experts"] * 3 * text["hidden_size"] * text["moe_intermediate_size"]


def _matrices(text: dict[str, Any]) -> int:
    """Weights of the other linear layers: attention, dense MLPs, shared experts."""
    hidden, layers, sparse = text["hidden_size"], text["num_hidden_layers"], _expert_layers(text)
    dense = (layers - sparse) * 3 * hidden * text["intermediate_size"]
    shared = sparse * text.get("n_shared_experts", 0) * 3 * hidden * text.get("moe_intermediate_size", 0)
    return layers * _attention(text) + dense + shared


def _others(text: dict[str, Any]) -> int:
    """Weights that are never quantised: embedding, lm_head, routers, norms."""
    hidden, layers = text["hidden_size"], text["num_hidden_layers"]
    tables = text["vocab_size"] * hidden * (1 if text.get("tie_word_embeddings") else 2)
    latents = (text.get("q_lora_rank") or 0) + (text.get("kv_lora_rank") or 0)
    norms = layers * (2 * hidden + latents) + hidden
    return tables + norms + _expert_layers(text) * text.get("n_routed_experts", 0) * hidden


def _expert_layers(text: dict[str, Any]) -> int:
    return text["num_hidden_layers"] - text.get("first_k_dense_replace", 0) if text.get("n_routed_experts") else 0


def _attention(text: dict[str, Any]) -> int:
    """Weights of one layer's projections."""
    hidden, heads = text["hidden_size"], text["num_attention_heads"]
    if text.get("kv_lora_rank"):
        rope, nope, value = text["qk_rope_head_dim"], text["qk_nope_head_dim"], text["v_head_dim"]
        rank, latent = text.get("q_lora_rank"), text["kv_lora_rank"]
        query = rank * (hidden + heads * (nope + rope)) if rank else hidden * heads * (nope + rope)
        return query + hidden * (latent + rope) + latent * heads * (nope + value) + heads * value * hidden
    head_dim = text.get("head_dim") or hidden // heads
    return 2 * hidden * head_dim * (heads + (text.get("num_key_value_heads") or heads))


def _unknown(why: str) -> str:
    return (
        f"verifier.source: the size of its weights is unknown: {why}, and there are no files to count. Give a folder "
        f"with its config.json and {INDEX} (or its weights)."
    )
