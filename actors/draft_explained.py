"""Where vLLM 0.32 finds each key of a draft's config.json, and what it takes when the key is missing (pure).

Read from transformers_utils/configs/speculators/algos.py, configs/eagle.py, models/llama_eagle3.py,
models/deepseek_eagle3.py and the runners' look-up of aux layers (v1/worker/gpu_model_runner.py;
v1/worker/gpu/spec_decode/eagle/eagle3_utils.py). A missing key is never an error there, which is how drafts break
quietly.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.draft_flags import DEFAULT_MLA, flags_of, is_speculators
from actors.layer_ids import for_tool
from actors.verifier import read_config
from conf.schema import LayerIds

MISSING = "missing"
LAYERS = "eagle_aux_hidden_state_layer_ids"
SHAPE_KEYS = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
NORM_FLAGS = ("norm_before_fc", "fc_norm", "norm_output")
WHEN_MISSING = {
    "num_key_value_heads": "vLLM takes num_attention_heads",
    "head_dim": "vLLM takes hidden_size / num_attention_heads: wrong for the Kimi drafts, whose 128 is not 7168 / 64",
    "draft_vocab_size": "vLLM takes vocab_size, and then refuses a file that has d2t",
    "target_hidden_size": "vLLM takes hidden_size",
    "rms_norm_eps": "transformers takes 1e-6",
    "rope_theta": "vLLM takes 10000",
}


@dataclass(frozen=True)
class Reading:
    """One key as vLLM reads it. `source`: top level, eagle_config, transformer_layer_config, or missing."""

    key: str
    value: Any
    source: str
    remark: str = ""  # what follows from where it is, or from its absence
    unsafe: bool = False  # the draft may run as another model than was trained


def explain(path: Path) -> list[Reading]:
    """How vLLM reads config.json of the checkpoint folder `path`. ValueError when it is no draft that vLLM has."""
    config = read_config(path)
    return list(_readings(config, flags_of(config, f"{path}/config.json")))


def _readings(config: dict[str, Any], flags: dict[str, Any]) -> Iterator[Reading]:
    nested = is_speculators(config)
    layer, where = (config["transformer_layer_config"], "transformer_layer_config") if nested else (config, "top level")
    yield _aux_layers(config, flags)
    yield _num_aux(layer, where, flags)
    for key in SHAPE_KEYS:
        if key == "head_dim" and flags["mla"]:
            yield Reading(key, flags[key], where, "qk_nope_head_dim + qk_rope_head_dim")
        else:
            yield _plain(key, flags[key], layer, where)
    for key in ("draft_vocab_size", "target_hidden_size"):
        yield _plain(key, flags[key], config, "top level")
    yield _plain("rms_norm_eps", flags["rms_norm_eps"], layer, where)
    yield _rope(layer, where, flags)
    yield _norm_before_residual(config, flags, nested)
    if flags["mla"]:
        missing = ", ".join(key for key in DEFAULT_MLA if layer.get(key) is None)
        remark = f"without {missing}: transformers takes DeepSeek-V2's" if missing else ""
        yield Reading("mla", flags["mla"], where, remark, bool(missing))
    for key in NORM_FLAGS:
        if key == "norm_before_fc" and flags["mla"]:
            yield Reading(key, False, where, "vLLM's MLA draft does not look at it", bool(config.get(key)))
            continue
        inner = {} if nested else config.get("eagle_config") or {}
        if key == "norm_before_fc" and key in inner:
            yield Reading(key, flags[key], "eagle_config")
        else:
            yield _plain(key, flags[key], config, "top level", "vLLM takes false")


def _plain(key: str, value: Any, found_in: dict[str, Any], where: str, default: str = "") -> Reading:
    if found_in.get(key) is not None:
        return Reading(key, value, where)
    return Reading(key, value, MISSING, default or WHEN_MISSING.get(key, ""))


def _aux_layers(config: dict[str, Any], flags: dict[str, Any]) -> Reading:
    value = flags["aux_layers"]
    default = "the V2 runner (GPU) takes the verifier's default, [2, n // 2, n - 3] of n layers"
    if config.get(LAYERS):
        remark = f"SGLang calls these states {for_tool(value, LayerIds.sglang)}"
        return Reading("aux_layers", value, "top level", remark)
    if value:
        return Reading("aux_layers", value, "eagle_config", f"not read there: {default}; write {LAYERS} on top", True)
    return Reading("aux_layers", value, MISSING, f"{default}; write {LAYERS} on top", True)


def _num_aux(layer: dict[str, Any], where: str, flags: dict[str, Any]) -> Reading:
    value, layers = flags["num_aux_hidden_states"], flags["aux_layers"] or []
    unsafe = bool(layers) and value != len(layers)
    remark = f"but there are {len(layers)} aux layers: fc will not fit; write num_aux_hidden_states" if unsafe else ""
    if layer.get("num_aux_hidden_states") is not None:
        return Reading("num_aux_hidden_states", value, where, remark, unsafe)
    if LAYERS in (layer.get("eagle_config") or {}):
        return Reading("num_aux_hidden_states", value, "eagle_config", remark or "counted there", unsafe)
    return Reading("num_aux_hidden_states", value, MISSING, f"vLLM takes 3 {remark}".strip(), unsafe)


def _norm_before_residual(config: dict[str, Any], flags: dict[str, Any], nested: bool) -> Reading:
    key = "norm_before_residual"
    if config.get(key) is not None:
        return Reading(key, flags[key], "top level")
    takes, other = ("true", "false in the flat format") if nested else ("false", "true in the speculators format")
    return Reading(key, flags[key], MISSING, f"vLLM takes {takes} here, and {other}: write it", True)


def _rope(layer: dict[str, Any], where: str, flags: dict[str, Any]) -> Reading:
    for key in ("rope_parameters", "rope_scaling"):
        if (layer.get(key) or {}).get("rope_theta") is not None:
            return Reading("rope", flags["rope"], f"{where}: {key}")
    if layer.get("rope_theta") is not None:
        return Reading("rope", flags["rope"], where)
    return Reading("rope", flags["rope"], MISSING, WHEN_MISSING["rope_theta"], True)
