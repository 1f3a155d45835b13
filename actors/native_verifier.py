"""The folder that speculators reads a verifier from: its own, or for Kimi-K2 a small one beside the training.

A workaround. speculators 0.9 opens the verifier with AutoConfig and without remote code (`load_verifier_weights` of its
`Eagle3DraftModel`; the review of its PR #964 names the gap), and transformers has no `kimi_k2`. By every tensor Kimi-K2
is a DeepSeek-V3: a folder with that config and the three tensors that a draft takes serves as well. It can go when
tests/actors/test_native_verifier.py finds that AutoConfig reads kimi_k2. Kimi-K2.5 is native and needs none of it.
"""

import json
from pathlib import Path
from typing import Any

from actors.checkpoint_folder import read_config
from actors.commit import whole_folder
from actors.verifier import Verifier
from actors.verifier_tensors import EMBEDDING, FINAL_NORM, LM_HEAD, find_tensor

DEEPSEEK_ALIKE = ("kimi_k2",)  # model types whose config and tensors are DeepSeek-V3's
NATIVE = {"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"]}
LEFT_OUT = ("auto_map", "quantization_config")  # no code is run, and the three tensors are plain numbers


def check_model_type(verifier: Verifier) -> None:
    """ValueError when speculators could not open the verifier; takes transformers' import."""
    model_type = _model_type(verifier)
    if not _native(model_type) and model_type not in DEEPSEEK_ALIKE:
        import transformers

        raise ValueError(
            f"verifier.source: {verifier.path} has model_type {model_type!r}, which transformers "
            f"{transformers.__version__} does not know without the checkpoint's own code, and speculators opens a "
            "verifier without it. Use a checkpoint in a native format, or write config.json with the model_type of the "
            "native architecture that this one equals."
        )


def folder_for_speculators(verifier: Verifier, work: Path) -> str:
    """verifier.path where transformers knows its model_type, else work/verifier, which is written when it is absent.

    Let one worker call it before the others do.
    """
    check_model_type(verifier)
    if _native(_model_type(verifier)):
        return verifier.path
    final = work / "verifier"
    if not final.exists():
        _write(Path(verifier.path), final)
    return str(final)


def _write(source: Path, final: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    config = {key: value for key, value in read_config(source).items() if key not in LEFT_OUT} | NATIVE
    tensors: dict[str, Any] = {}
    for name, suffix in ((f"model.{EMBEDDING}", EMBEDDING), (LM_HEAD, LM_HEAD), (FINAL_NORM, FINAL_NORM)):
        place = find_tensor(source, suffix)
        if name == LM_HEAD and place.name.endswith(EMBEDDING):
            continue  # tied
        with safe_open(place.file, framework="pt") as file:
            tensors[name] = file.get_tensor(place.name)
    with whole_folder(final) as folder:
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _model_type(verifier: Verifier) -> str:
    return read_config(Path(verifier.path)).get("model_type", "")


def _native(model_type: str) -> bool:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return model_type in CONFIG_MAPPING_NAMES
