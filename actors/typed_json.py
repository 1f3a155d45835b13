"""A JSON file as a dataclass, checked field by field (pure)."""

from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter

Read = TypeVar("Read")


def read_json(file: Path, kind: type[Read]) -> Read | None:
    """What `file` says; None when it is not there, is damaged, or says something else than a `kind`."""
    try:
        return TypeAdapter(kind).validate_json(file.read_bytes())
    except (OSError, ValueError):
        return None
