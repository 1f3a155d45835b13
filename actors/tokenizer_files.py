"""What a tokenizer's files say without loading it: the Python that it needs, and the ids of its added tokens (pure)."""

from pathlib import Path
from typing import Any

from actors.checkpoint_folder import read_json

CONFIG = "tokenizer_config.json"
TIKTOKEN = "tiktoken.model"
COMPLETE = ("tokenizer.json", "tokenizer.model")  # transformers reads these with its own code


def tokenizer_code(folder: Path) -> str | None:
    """The Python file of the checkpoint without which its ids are unknown; None where transformers' own code will do.

    ValueError when there is no such file. A file in another repository is named <repository>--<file>, as its config has
    it.
    """
    if not (folder / TIKTOKEN).exists() or any((folder / name).exists() for name in COMPLETE):
        return None
    told = read_json(folder / CONFIG).get("auto_map") if (folder / CONFIG).exists() else None
    classes = told.get("AutoTokenizer") if isinstance(told, dict) else told  # older ones have the list itself
    slow = next(filter(None, [classes] if isinstance(classes, str) else classes or []), None)
    if not isinstance(slow, str) or "." not in slow:
        raise ValueError(
            f"verifier.source: {folder} has {TIKTOKEN} and no {COMPLETE[0]}, so its tokenizer is Python in the "
            f"checkpoint, and no auto_map in {CONFIG} names it. Copy {CONFIG} and the *.py files from the checkpoint "
            "again."
        )
    file = slow.rpartition(".")[0] + ".py"
    if "--" not in file and not (folder / file).exists():
        raise ValueError(
            f"verifier.source: {folder} lacks {file}, the Python that reads its {TIKTOKEN}. Copy the *.py files from "
            "the checkpoint again."
        )
    return file


def added_tokens(folder: Path) -> dict[str, int]:
    """Token -> id, ascending, of what was added to the vocabulary: markers of roles, thoughts, tool calls."""
    entries: list[tuple[Any, Any]] = []
    if (folder / COMPLETE[0]).exists():
        listed = read_json(folder / COMPLETE[0]).get("added_tokens") or []
        entries += [(entry.get("id"), entry) for entry in listed if isinstance(entry, dict)]
    if (folder / CONFIG).exists():
        entries += (read_json(folder / CONFIG).get("added_tokens_decoder") or {}).items()
    found = {str(entry["content"]): int(number) for number, entry in entries if "content" in entry}
    return dict(sorted(found.items(), key=lambda item: item[1]))
