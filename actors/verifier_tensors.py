"""The tensors of a verifier that a draft uses, found by suffix and read from headers only (pure).

A verifier of 540 GB has these beside 200,000 others: nothing else is opened.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.checkpoint_folder import read_config, safetensors_header, tensor_files, text_config

EMBEDDING = "embed_tokens.weight"
LM_HEAD = "lm_head.weight"
FINAL_NORM = "model.norm.weight"
FLOATS = ("F32", "F16", "BF16")  # safetensors' names
PACKED = ("weight_packed", "weight_scale", "qweight")  # what compressed-tensors, FP8 and GPTQ have for `weight`


@dataclass(frozen=True)
class Place:
    """Where a tensor lies."""

    file: Path
    name: str


def find_tensor(folder: Path, suffix: str) -> Place:
    """The tensor whose name ends in `suffix`; ValueError where there is none.

    lm_head.weight is the embedding where the config ties them.
    """
    files = tensor_files(folder)
    name = shortest(files, suffix)
    if name is None and suffix == LM_HEAD and tied(read_config(folder)):
        name = shortest(files, EMBEDDING)
    if name is None:
        raise ValueError(
            f"verifier.source: {folder} has no tensor that ends in {suffix}, which a draft takes from it. Use a "
            "checkpoint in Hugging Face's layout."
        )
    return Place(folder / files[name], name)


def shortest(names: dict[str, str], suffix: str) -> str | None:
    """Prefixes such as `language_model.` are fine; those of MTP layers are longer."""
    dotted = f".{suffix}"
    return min((name for name in names if name == suffix or name.endswith(dotted)), key=len, default=None)


def tied(config: dict[str, Any]) -> bool:
    """Whether lm_head is the embedding. A config that says nothing has a class that ties them by default."""
    return bool(text_config(config).get("tie_word_embeddings", config.get("tie_word_embeddings", True)))


def check_rows(folder: Path, config: dict[str, Any], files: dict[str, str]) -> None:
    """ValueError when the rows of lm_head or embedding are not plain numbers, or lm_head is missing.

    `files` is `tensor_files(folder)`: an index of 200,000 names is read once.
    """
    if why := _quantized(folder, files, LM_HEAD):
        raise ValueError(_refusal(folder, "lm_head", why, "The draft's targets are computed with its rows"))
    if why := _quantized(folder, files, EMBEDDING):
        raise ValueError(_refusal(folder, "embed_tokens", why, "The draft reads tokens through its rows"))
    if shortest(files, EMBEDDING) and not shortest(files, LM_HEAD) and not tied(config):
        raise ValueError(  # speculators would take the embedding for it
            f"verifier.source: {folder} has no {LM_HEAD}, and its config.json says tie_word_embeddings=false. Copy the "
            "file that holds it from the checkpoint again, or set that key to true if the embedding serves as lm_head."
        )


def _quantized(folder: Path, files: dict[str, str], suffix: str) -> str | None:
    """Why the tensor is not plain numbers; None when it is, or there is none."""
    found, part = shortest(files, suffix), suffix.removesuffix(".weight")
    packed = next((name for kind in PACKED if (name := shortest(files, f"{part}.{kind}"))), None)
    if packed and (found is None or len(_module(packed)) < len(_module(found))):  # an MTP layer's may be plain
        return f"there is {packed}, and no {_module(packed)}.weight"
    if found is None:
        return None
    dtype = safetensors_header(folder / files[found]).get(found, {}).get("dtype")
    return None if dtype in FLOATS else f"{found} is {dtype}, none of {', '.join(FLOATS)}"


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _refusal(folder: Path, part: str, why: str, use: str) -> str:
    return (
        f"verifier.source: {folder} has a quantized {part} ({why}). {use}, and they must be plain numbers: use a "
        f"checkpoint whose quantization_config ignores {part}."
    )
