"""Facts about a verifier folder, read from its files without loading a model (pure)."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tiktoken.model",
    "tokenizer_config.json",
    "chat_template.jinja",
)


@dataclass(frozen=True)
class Verifier:
    """A verifier on disk.

    `fingerprint` covers config, tokenizer, chat template and the names, sizes and headers of the weight files: the
    same revision has the same fingerprint wherever it lies, and 540 GB need not be read to know it.
    """

    path: str
    fingerprint: str
    hidden_size: int
    num_layers: int
    vocab_size: int
    max_position_embeddings: int  # tokens
    architecture: str

    @property
    def last_layer(self) -> int:
        """Layer id of the last residual stream, before the final norm."""
        return self.num_layers


def read_verifier(path: str | Path) -> Verifier:
    """Read a verifier folder. ValueError names what is missing and what to do."""
    folder = Path(path)
    config = text_config(read_config(folder))
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise ValueError(
            f"verifier.source: {folder} holds no *.safetensors weights. Point it at a complete Hugging Face checkpoint "
            "folder, a hub id, or bundled:smollm2."
        )
    _check_index(folder)
    if not any((folder / name).exists() for name in TOKENIZER_FILES[:3]):
        raise ValueError(
            f"verifier.source: {folder} holds no tokenizer ({', '.join(TOKENIZER_FILES[:3])}). Copy the "
            "tokenizer files of the model into the folder."
        )
    try:
        fingerprint = _fingerprint(folder, weights)
    except ValueError as error:
        raise ValueError(f"verifier.source: {error}") from error
    try:
        return Verifier(
            path=str(folder.resolve()),
            fingerprint=fingerprint,
            hidden_size=config["hidden_size"],
            num_layers=config["num_hidden_layers"],
            vocab_size=config["vocab_size"],
            max_position_embeddings=config["max_position_embeddings"],
            architecture=(read_config(folder).get("architectures") or ["unknown"])[0],
        )
    except KeyError as error:
        raise ValueError(f"verifier.source: {folder}/config.json has no key {error}; is it a language model?") from None


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a checkpoint folder."""
    file = folder / "config.json"
    if not file.exists():
        raise ValueError(f"verifier.source: {folder} has no config.json. Give a Hugging Face checkpoint folder.")
    try:
        return json.loads(file.read_text())
    except ValueError as error:  # no JSON, or no UTF-8
        raise ValueError(
            f"verifier.source: {file} cannot be read ({error}). Copy it from the checkpoint again."
        ) from error


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


def _check_index(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return
    wanted = set(json.loads(index.read_text())["weight_map"].values())
    missing = sorted(name for name in wanted if not (folder / name).exists())
    if missing:
        raise ValueError(
            f"verifier.source: {folder} lacks {len(missing)} of {len(wanted)} weight files, first {missing[0]}. "
            "Download the checkpoint again."
        )


def _fingerprint(folder: Path, weights: list[Path]) -> str:
    digest = hashlib.sha256()
    for name in ("config.json", *TOKENIZER_FILES):
        if (folder / name).exists():
            digest.update(name.encode() + (folder / name).read_bytes())
    for file in weights:
        digest.update(f"{file.name} {file.stat().st_size}".encode())
        digest.update(json.dumps(safetensors_header(file), sort_keys=True).encode())
    return digest.hexdigest()[:16]
