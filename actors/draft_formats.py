"""Writes a trained draft in the two formats that vLLM loads (pure: json, safetensors, torch for tensors only).

*speculators*: decoder config nested, flags on top; names its verifier, so `vllm serve <folder>` suffices.
*flat*: one level, `LlamaForCausalLMEagle3`; what SGLang, SpecForge and older vLLM read. A draft with MLA has this form
only, as `Eagle3DeepseekV2ForCausalLM`.

`embed_tokens` is left out where it is the verifier's own, bit for bit: vLLM then shares it (2.35 GB for Kimi-K2.5).
speculators 0.9 does not load such a folder reliably: `Eagle3DraftModel.from_pretrained` takes the missing embedding
for present unless the uninitialised memory happens to hold a NaN. To train on from one, call
`model._load_verifier_weights(overwrite_embed_tokens=True)` after it, or start from the train step's checkpoint.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from actors.commit import whole_folder
from actors.draft_contents import EMBEDDING, shares_embedding
from actors.draft_flags import DEFAULT_MLA, LLAMA_DRAFTS, MLA_DRAFTS, MLA_MODEL_TYPE, rope
from actors.draft_shapes import WEIGHTS, normalised
from actors.verifier import Verifier, read_config, text_config
from conf.schema import Naming

DECODER_KEYS = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("hidden_act", "rms_norm_eps", "attention_bias", "max_position_embeddings"),
)
LLAMA_KEYS = ("head_dim", "mlp_bias")
MLA_KEYS = (*DEFAULT_MLA, "first_k_dense_replace")
TRAINED_MLA = "deepseek_v3"  # model_type of the decoder config in a speculators checkpoint: see actors/mla_draft.py


def write_speculators(draft: Path, verifier: Verifier, out: Path, num_speculative_tokens: int) -> None:
    """Copy of the speculators checkpoint `draft` into the new folder `out`, made ready to serve."""
    config = read_config(draft)
    layer = _layer(draft, config)
    if layer["model_type"] != "llama":
        raise ValueError(f"{draft}: vLLM reads a {layer['model_type']} draft in the flat format only; use write_flat.")
    described = config["speculators_config"]
    described["verifier"] = {"name_or_path": verifier.path, "architectures": [verifier.architecture]}
    for proposal in described["proposal_methods"]:
        proposal["speculative_tokens"] = num_speculative_tokens
    config["transformer_layer_config"] = layer | _aux_count(config["eagle_aux_hidden_state_layer_ids"])
    config.pop("auto_map", None)  # names a config.py that is not needed, and code has no place beside weights
    _write(out, config, _tensors(draft, verifier))


def write_flat(draft: Path, verifier: Verifier, out: Path, naming: Naming, num_speculative_tokens: int) -> None:
    """The speculators checkpoint `draft` as a flat vLLM checkpoint in the new folder `out`."""
    config = read_config(draft)
    layer = _layer(draft, config)
    if naming is Naming.midlayer and layer["num_hidden_layers"] != 1:
        raise ValueError(
            f"convert.naming: midlayer names exactly one layer, and this draft has {layer['num_hidden_layers']}. "
            "Set convert.naming=layers."
        )
    tensors = _tensors(draft, verifier)
    if naming is Naming.midlayer:
        tensors = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()}
    dtype = str(tensors["fc.weight"].dtype).removeprefix("torch.")
    _write(out, _flat_config(config, layer, verifier, dtype, num_speculative_tokens), tensors)


def _layer(draft: Path, config: dict[str, Any]) -> dict[str, Any]:
    if config.get("speculators_model_type") != "eagle3":
        raise ValueError(f"{draft} is no EAGLE-3 checkpoint of speculators; convert takes what the train step leaves.")
    layer = config["transformer_layer_config"]
    if layer["model_type"] not in ("llama", TRAINED_MLA):
        raise ValueError(f"{draft}: a {layer['model_type']} draft has no flat form; train a Llama or an MLA draft.")
    return layer


def _tensors(draft: Path, verifier: Verifier) -> dict[str, torch.Tensor]:
    """Tensors of the checkpoint without what vLLM shares or refuses."""
    leave_out = {EMBEDDING} if shares_embedding(draft, verifier) else set()
    tensors = load_file(draft / WEIGHTS)
    if "d2t" in tensors and len(tensors["d2t"]) == verifier.vocab_size:
        leave_out |= {"d2t", "t2d"}  # an identity map; vLLM refuses a file that has one
    return {normalised(name): tensor for name, tensor in tensors.items() if name not in leave_out}


def _aux_count(layers: list[int]) -> dict[str, int]:
    """vLLM takes three aux layers unless told here: it does not count the top-level list."""
    return {} if len(layers) == 3 else {"num_aux_hidden_states": len(layers)}


def _flat_config(
    config: dict[str, Any], layer: dict[str, Any], verifier: Verifier, dtype: str, num_speculative_tokens: int
) -> dict[str, Any]:
    aux_layers = config["eagle_aux_hidden_state_layer_ids"]
    sliding: dict[str, Any] = {key: layer[key] for key in ("layer_types", "sliding_window") if key in layer}
    parameters = rope(
        layer["rope_parameters"]["rope_theta"], layer["rope_parameters"], layer["max_position_embeddings"]
    )
    scaling = {key: value for key, value in parameters.items() if key != "rope_theta"}
    # target_hidden_size must not be null here: vLLM multiplies with whatever it finds
    target = {"target_hidden_size": config["target_hidden_size"]} if config.get("target_hidden_size") else {}
    whole = read_config(Path(verifier.path))
    tokens = {key: text_config(whole).get(key, whole.get(key)) for key in ("bos_token_id", "eos_token_id")}
    mla = layer["model_type"] == TRAINED_MLA
    return {
        "architectures": [MLA_DRAFTS[0] if mla else LLAMA_DRAFTS[0]],
        "model_type": MLA_MODEL_TYPE if mla else "llama",
        **{key: layer[key] for key in (*DECODER_KEYS, *(MLA_KEYS if mla else LLAMA_KEYS))},
        **sliding,
        **target,
        **_aux_count(aux_layers),
        "vocab_size": verifier.vocab_size,
        "draft_vocab_size": config["draft_vocab_size"],
        "eagle_aux_hidden_state_layer_ids": aux_layers,
        **{key: config[key] for key in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")},
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": aux_layers,
            "use_aux_hidden_state": True,
            "norm_before_fc": config["norm_before_fc"],
        },
        # transformers 5 reads the first, older readers the other two; they say the same
        "rope_parameters": parameters,
        "rope_theta": parameters["rope_theta"],
        "rope_scaling": None if parameters["rope_type"] == "default" else scaling,
        "tie_word_embeddings": False,
        **{key: value for key, value in tokens.items() if value is not None},
        "dtype": dtype,
        "torch_dtype": dtype,
        "num_speculative_tokens": num_speculative_tokens,  # for people: vLLM wants it on its command line
    }


def _write(out: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    """Write a checkpoint folder, whole or absent; an older `out` is replaced."""
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    with whole_folder(out) as folder:
        save_file(contiguous, folder / WEIGHTS, metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
