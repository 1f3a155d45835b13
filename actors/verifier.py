"""Facts about a verifier folder, read from its files without loading a model (pure)."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.checkpoint_folder import read_config, safetensors_header, tensor_files, text_config
from actors.tokenizer_files import added_tokens, tokenizer_code
from actors.verifier_tensors import check_rows

__all__ = ["Verifier", "read_config", "read_verifier", "safetensors_header", "text_config"]
MEDIA_TOKEN = "media_placeholder_token_id"
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
    num_attention_heads: int
    rms_norm_eps: float
    tokenizer_code: str | None = None  # the checkpoint's Python file that its tokenizer needs
    added_tokens: Mapping[str, int] | None = None  # token -> id; None: no tokenizer was read

    @property
    def last_layer(self) -> int:
        """Layer id of the last residual stream, before the final norm."""
        return self.num_layers


def read_verifier(path: str | Path) -> Verifier:
    """Read a verifier folder. ValueError names what is missing and what to do."""
    folder = Path(path)
    whole = read_config(folder)
    config = text_config(whole)
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise ValueError(
            f"verifier.source: {folder} holds no *.safetensors weights. Point it at a complete Hugging Face checkpoint "
            "folder, a hub id, or bundled:smollm2."
        )
    files = tensor_files(folder)
    _check_files(folder, set(files.values()))
    if not any((folder / name).exists() for name in TOKENIZER_FILES[:3]):
        raise ValueError(
            f"verifier.source: {folder} holds no tokenizer ({', '.join(TOKENIZER_FILES[:3])}). Copy the "
            "tokenizer files of the model into the folder."
        )
    code = tokenizer_code(folder)
    try:
        fingerprint = _fingerprint(folder, weights, code)
    except ValueError as error:
        raise ValueError(f"verifier.source: {error}") from error
    check_rows(folder, whole, files)
    _check_media_token(folder, whole)
    try:
        return Verifier(
            path=str(folder.resolve()),
            fingerprint=fingerprint,
            hidden_size=config["hidden_size"],
            num_layers=config["num_hidden_layers"],
            vocab_size=config["vocab_size"],
            max_position_embeddings=config["max_position_embeddings"],
            architecture=(whole.get("architectures") or ["unknown"])[0],
            num_attention_heads=config["num_attention_heads"],
            rms_norm_eps=config["rms_norm_eps"],
            tokenizer_code=code,
            added_tokens=added_tokens(folder),
        )
    except KeyError as error:
        raise ValueError(f"verifier.source: {folder}/config.json has no key {error}; is it a language model?") from None


def _check_files(folder: Path, wanted: set[str]) -> None:
    missing = sorted(name for name in wanted if not (folder / name).exists())
    if missing:
        raise ValueError(
            f"verifier.source: {folder} lacks {len(missing)} of {len(wanted)} weight files, first {missing[0]}. "
            "Download the checkpoint again."
        )


def _check_media_token(folder: Path, config: dict[str, Any]) -> None:
    """vLLM's V1 runner reads it from the config when a draft is used, and transformers' class has no default for it."""
    if "KimiK25ForConditionalGeneration" not in (config.get("architectures") or []):
        return
    found = config.get(MEDIA_TOKEN)
    if type(found) is not int:
        raise ValueError(
            f"verifier.source: {folder}/config.json has no integer {MEDIA_TOKEN} (it is {found!r}), and vLLM reads it "
            f'when this model runs with a draft. Add "{MEDIA_TOKEN}": 163605 to it (that is Kimi-K2.5\'s).'
        )


def _fingerprint(folder: Path, weights: list[Path], code: str | None) -> str:
    digest = hashlib.sha256()
    for name in ("config.json", *TOKENIZER_FILES, *([code] if code else [])):
        if (folder / name).exists():
            digest.update(name.encode() + (folder / name).read_bytes())
    for file in weights:
        digest.update(f"{file.name} {file.stat().st_size}".encode())
        digest.update(json.dumps(safetensors_header(file), sort_keys=True).encode())
    return digest.hexdigest()[:16]
