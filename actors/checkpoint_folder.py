"""Files of a Hugging Face checkpoint folder, read without loading a model (pure)."""

import json
from pathlib import Path
from typing import Any

INDEX = "model.safetensors.index.json"


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a checkpoint folder."""
    file = folder / "config.json"
    if not file.exists():
        raise ValueError(f"verifier.source: {folder} has no config.json. Give a Hugging Face checkpoint folder.")
    return read_json(file)


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object of a verifier."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:  # no JSON, or no UTF-8
        raise ValueError(
            f"verifier.source: {file} cannot be read ({error}). Copy it from the checkpoint again."
        ) from error
    if not isinstance(found, dict):
        raise ValueError(f"verifier.source: {file} holds no JSON object. Copy it from the checkpoint again.")
    return found


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The language part of a config: multimodal models nest it."""
    return config.get("text_config", config)


def safetensors_header(file: Path) -> dict[str, Any]:
    """Names, dtypes and shapes of a safetensors file, read from its header only."""
    with file.open("rb") as f:
        size = int.from_bytes(f.read(8), "little")
        if not 2 <= size <= file.stat().st_size - 8:
            raise ValueError(f"{file} is no safetensors file, or is cut (a git-lfs pointer?). Download it again.")
        header = json.loads(f.read(size))
    header.pop("__metadata__", None)
    return header


def tensor_files(folder: Path) -> dict[str, str]:
    """Name of every tensor of a verifier -> its file's: from the index where there is one, else from the headers."""
    index = folder / INDEX
    if index.exists():
        files = read_json(index).get("weight_map")
        if not isinstance(files, dict):
            raise ValueError(f"verifier.source: {index} has no weight_map. Copy it from the checkpoint again.")
        return files
    try:
        return {name: file.name for file in sorted(folder.glob("*.safetensors")) for name in safetensors_header(file)}
    except ValueError as error:
        raise ValueError(f"verifier.source: {error}") from error
