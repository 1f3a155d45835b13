"""What vLLM 0.32 would make of a draft's config.json, defaults included (pure).

A flag that is missing or at the wrong level of the file is not an error in vLLM: the draft loads, computes something
else than it was trained to, and is merely bad. So both formats are read back here the way vLLM reads them
(transformers_utils/configs/speculators/, models/llama_eagle3.py, gpu_model_runner.py) and held against `DraftConfig`.
"""

from pathlib import Path
from typing import Any

from actors.verifier import Verifier, read_config
from conf.schema import DraftConfig

MLA_DRAFTS = ("Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM")  # one class in vLLM, with MLA
MLA_MODEL_TYPE = "deepseek_v2"  # vLLM turns a deepseek_v3 draft into an MTP one, and refuses it
LLAMA_DRAFTS = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "LlamaForCausalLM")  # one class in vLLM
SCALED_ROPE = ("llama3", "yarn", "longrope")  # transformers adds original_max_position_embeddings to these
DEFAULT_ROPE_THETA = 10000.0
DEFAULT_RMS_NORM_EPS = 1e-6  # LlamaConfig's and DeepseekV2Config's
DEFAULT_MLA = {  # DeepseekV2Config's
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}


def configured_flags(draft: DraftConfig, verifier: Verifier) -> dict[str, Any]:
    """The flags that a converted draft must have."""
    return {
        "aux_layers": list(draft.aux_layers),
        "num_aux_hidden_states": len(draft.aux_layers),
        "norm_before_residual": draft.norm_before_residual,
        "norm_before_fc": draft.norm_before_fc,
        "fc_norm": draft.fc_norm,
        "norm_output": draft.norm_output,
        "hidden_size": verifier.hidden_size,
        "target_hidden_size": verifier.hidden_size,
        "vocab_size": verifier.vocab_size,
        "draft_vocab_size": draft.draft_vocab_size,
        "num_layers": draft.num_layers,
        "intermediate_size": draft.intermediate_size,
        "num_attention_heads": draft.num_attention_heads,
        "num_key_value_heads": draft.num_key_value_heads,
        "head_dim": draft.head_dim,
        "mla": vars(draft.mla).copy() if draft.mla else None,
        "attention_bias": draft.attention_bias,
        "rms_norm_eps": draft.rms_norm_eps,
        "rope": rope(draft.rope_theta, draft.rope_scaling, draft.max_position_embeddings),
        "sliding_layers": 0,
    }


def effective_flags(path: Path) -> dict[str, Any]:
    """The same flags as vLLM would read them from a checkpoint folder of either format."""
    return flags_of(read_config(path), f"{path}/config.json")


def flags_of(config: dict[str, Any], where: str) -> dict[str, Any]:
    """The same of a parsed config.json; `where` names it in errors."""
    if is_speculators(config):
        return _speculators_flags(where, config)
    return _flat_flags(where, config)


def is_speculators(config: dict[str, Any]) -> bool:
    """Whether vLLM would take a config.json for one of the speculators format."""
    return "speculators_config" in config


def flag_differences(ours: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """One line for each flag that differs."""
    return [f"{key}: {ours[key]}, configured {value}" for key, value in wanted.items() if ours[key] != value]


def rope(theta: float | None, scaling: dict[str, Any] | None, max_position_embeddings: int) -> dict[str, Any]:
    """Rope parameters in the one form that transformers 5 and vLLM reduce all older ones to.

    `theta` None: the verifier's, where it is not filled in (workflows/verifier_rope.py).
    """
    parameters = dict(scaling or {})
    legacy = parameters.pop("type", "default")
    parameters.setdefault("rope_type", legacy)
    parameters.setdefault("rope_theta", theta)
    if parameters["rope_type"] in SCALED_ROPE:
        parameters.setdefault("original_max_position_embeddings", max_position_embeddings)
    return parameters


def _flat_flags(where: str, config: dict[str, Any]) -> dict[str, Any]:
    architecture = (config.get("architectures") or ["none"])[0]
    kind = (config.get("model_type"), architecture)
    if not is_mla(config) and not (kind[0] == "llama" and architecture in LLAMA_DRAFTS):
        raise ValueError(
            f"{where}: {kind[0]} {architecture} is no EAGLE-3 draft that is known here; vLLM loads model_type llama "
            f"with architectures [{LLAMA_DRAFTS[0]}], and {MLA_MODEL_TYPE} with [{MLA_DRAFTS[0]}]."
        )
    config = {"rms_norm_eps": DEFAULT_RMS_NORM_EPS, **config}  # transformers fills this; SpeculatorsConfig does not
    flags = _common(config) | {"norm_before_residual": bool(config.get("norm_before_residual", False))}
    return flags | _mla_flags(config) if is_mla(config) else flags


def is_mla(config: dict[str, Any]) -> bool:
    """Whether a flat config.json is that of a draft with multi-head latent attention."""
    architecture = (config.get("architectures") or ["none"])[0]
    return config.get("model_type") == MLA_MODEL_TYPE and architecture in MLA_DRAFTS


def _mla_flags(config: dict[str, Any]) -> dict[str, Any]:
    """What differs for Eagle3DeepseekV2ForCausalLM: latents instead of KV heads; norm_before_fc is not looked at."""
    mla = {key: config.get(key, default) for key, default in DEFAULT_MLA.items()}
    return {"mla": mla, "head_dim": mla["qk_nope_head_dim"] + mla["qk_rope_head_dim"], "norm_before_fc": False}


def _speculators_flags(where: str, config: dict[str, Any]) -> dict[str, Any]:
    layer = dict(config["transformer_layer_config"])
    if config.get("speculators_model_type") != "eagle3" or layer.get("model_type") != "llama":
        raise ValueError(
            f"{where}: a {config.get('speculators_model_type')} speculator with a {layer.get('model_type')} "
            "layer is no llama-shaped EAGLE-3 draft."
        )
    # update_eagle3: the decoder's keys, and these from the top level over them
    layer["draft_vocab_size"] = config.get("draft_vocab_size")
    for key in ("norm_before_fc", "fc_norm", "norm_output"):
        layer[key] = config.get(key, False)
    for key in ("target_hidden_size", "eagle_aux_hidden_state_layer_ids"):
        if config.get(key):
            layer[key] = config[key]
    return _common(layer) | {"norm_before_residual": bool(config.get("norm_before_residual", True))}


def _common(config: dict[str, Any]) -> dict[str, Any]:
    eagle = config.get("eagle_config") or {}
    nested_layers = eagle.get("eagle_aux_hidden_state_layer_ids")
    num_aux = config.get("num_aux_hidden_states")
    heads = config["num_attention_heads"]
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    return {
        "aux_layers": config.get("eagle_aux_hidden_state_layer_ids") or nested_layers,
        # not the length of the top-level list: vLLM does not look there, and takes 3
        "num_aux_hidden_states": num_aux if num_aux is not None else len(nested_layers) if nested_layers else 3,
        "norm_before_fc": bool(eagle.get("norm_before_fc", config.get("norm_before_fc", False))),
        "fc_norm": bool(config.get("fc_norm", False)),
        "norm_output": bool(config.get("norm_output", False)),
        "hidden_size": config["hidden_size"],
        "target_hidden_size": config.get("target_hidden_size", config["hidden_size"]),
        "vocab_size": config["vocab_size"],
        "draft_vocab_size": config.get("draft_vocab_size") or config["vocab_size"],
        "num_layers": config["num_hidden_layers"],
        "intermediate_size": config["intermediate_size"],
        "num_attention_heads": heads,
        "num_key_value_heads": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or config["hidden_size"] // heads,
        "mla": None,
        "attention_bias": bool(config.get("attention_bias", False)),
        "rms_norm_eps": config["rms_norm_eps"],
        "rope": rope(config.get("rope_theta", DEFAULT_ROPE_THETA), scaling, config["max_position_embeddings"]),
        "sliding_layers": sum(kind == "sliding_attention" for kind in config.get("layer_types") or []),
    }
