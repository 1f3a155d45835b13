"""Identity of a step: sha256 of the canonical configuration that changes its result and of its inputs (pure).

Paths, hosts and worker counts are not identity: fields made with `conf.schema.runtime` are skipped, and a value whose
serialisation is not stable is an error and never a guess.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from enum import Enum
from typing import Any

SHORT = 8  # hex digits of a fingerprint that name a directory


def identity(obj: Any) -> Any:
    """Canonical JSON-able form of `obj`; TypeError with a hint for what has no stable encoding."""
    return _identity(obj, "config")


def fingerprint(config: Mapping[str, Any], inputs: Mapping[str, str]) -> str:
    """64 hex digits over the configuration sections and the fingerprints of the inputs."""
    content = {"config": identity(config), "inputs": identity(inputs)}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _identity(obj: Any, where: str) -> Any:
    if isinstance(obj, Enum):
        return _identity(obj.value, where)
    if obj is None or type(obj) in (bool, int, str):
        return obj
    if type(obj) is float:
        if not math.isfinite(obj):
            raise TypeError(f"{where}: {obj} has no JSON form; use None, or a finite number")
        return obj
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        names = sorted(f.name for f in dataclasses.fields(obj) if f.metadata.get("identity", True))
        return {name: _identity(getattr(obj, name), f"{where}.{name}") for name in names}
    if isinstance(obj, Mapping):
        if bad := [key for key in obj if type(key) is not str]:
            raise TypeError(f"{where}: key {bad[0]!r} is no string; JSON would make it one. Use string keys")
        return {key: _identity(obj[key], f"{where}.{key}") for key in sorted(obj)}
    if isinstance(obj, (list, tuple)):
        return [_identity(value, f"{where}[{index}]") for index, value in enumerate(obj)]
    raise TypeError(f"{where}: {type(obj).__name__} has no stable encoding. {_hint(obj)}")


def _hint(obj: Any) -> str:
    if isinstance(obj, (set, frozenset)):
        return "Sets have no order: give a sorted list"
    if hasattr(obj, "__fspath__"):
        return "Paths are not identity: give the fingerprint of what lies there, or make the field runtime(...)"
    if callable(obj):
        return "Give the name of the function as a string"
    if hasattr(obj, "item"):
        return "Give a plain number: call .item()"
    return "Use dataclasses, enums, dicts, lists, strings and numbers, or make the field runtime(...)"
