"""From a folder or a Hugging Face id to a checkpoint folder on this machine."""

from pathlib import Path

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


def local_folder(key: str, source: str, instead: str = "") -> Path | None:
    """The folder that `source` names; None when it can only be a hub id. `instead`: what else the key takes."""
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    if source.startswith((".", "/", "~")):
        ways = ["a checkpoint folder", "a hub id", *filter(None, [instead])]
        raise ValueError(f"{key}: there is no folder {folder}. Give {', '.join(ways[:-1])}, or {ways[-1]}.")
    return None


def hub_folder(key: str, source: str, *, revision: str | None = None, asked: str = "", instead: str = "") -> Path:
    """The hub's snapshot, from its cache where it is whole. `asked` names the revision in a message."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import RevisionResolutionError

    try:
        return Path(snapshot_download(source, revision=revision, ignore_patterns=NOT_NEEDED))
    # not found, gated, offline without a copy, unknown revision, no valid id, disk full
    except (OSError, ValueError, RevisionResolutionError) as error:
        raise ValueError(
            f"{key}: cannot get {source!r}{asked} from the hub: {error} Download it where there is a network and give "
            f"its folder as {key}{f', or use {instead}' if instead else ''}."
        ) from error
