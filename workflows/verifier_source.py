"""From `verifier.source` to a checkpoint folder on this machine."""

from pathlib import Path

from actors.verifier import Verifier, read_verifier
from conf.schema import VerifierConfig
from workflows.smollm2 import smollm2_folder

BUNDLED_PREFIX = "bundled:"
BUNDLED_VERIFIERS = {"smollm2": smollm2_folder}
# duplicates of the safetensors weights in other formats
NOT_NEEDED = [
    "original/*",
    "consolidated*",
    "onnx/*",
    "*.bin",
    "*.pth",
    "*.pt",
    "*.gguf",
    "*.onnx",
    "*.h5",
    "*.msgpack",
]


def resolve_verifier(cfg: VerifierConfig, output_root: Path) -> Verifier:
    """Make the verifier local: converted once below `output_root`, used where it lies, or downloaded."""
    if cfg.source.startswith(BUNDLED_PREFIX):
        return read_verifier(_bundled(cfg.source.removeprefix(BUNDLED_PREFIX), output_root))
    folder = Path(cfg.source).expanduser()
    if folder.is_dir():
        return read_verifier(folder)
    if cfg.source.startswith((".", "/", "~")):
        raise ValueError(
            f"verifier.source: there is no folder {folder}. Give a checkpoint folder, a hub id, or bundled:smollm2."
        )
    return read_verifier(_download(cfg))


def _bundled(name: str, output_root: Path) -> Path:
    if name not in BUNDLED_VERIFIERS:
        known = ", ".join(BUNDLED_PREFIX + n for n in sorted(BUNDLED_VERIFIERS))
        raise ValueError(f"verifier.source: no bundled verifier {name!r}; there is: {known}")
    try:
        return BUNDLED_VERIFIERS[name](output_root / "verifiers")
    except ValueError as error:
        raise ValueError(f"verifier.source: {error}") from error


def _download(cfg: VerifierConfig) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import RevisionResolutionError

    try:
        return Path(snapshot_download(cfg.source, revision=cfg.revision, ignore_patterns=NOT_NEEDED))
    # not found, gated, offline without a copy, unknown revision, no valid id, disk full
    except (OSError, ValueError, RevisionResolutionError) as error:
        raise ValueError(
            f"verifier.source: cannot get {cfg.source!r} at verifier.revision={cfg.revision} from the hub: {error} "
            "Download it where there is a network and give its folder as verifier.source, or use bundled:smollm2."
        ) from error
