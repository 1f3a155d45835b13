"""The record that makes a step done: `record.json`, written last and atomically, and what differs from it (pure)."""

import dataclasses
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.commit import replace_atomically
from workflows.fingerprint import SHORT, identity

log = logging.getLogger(__name__)
RECORD = "record.json"


@dataclass(frozen=True)
class Record:
    """Account of one finished step."""

    step: str
    fingerprint: str  # 64 hex digits
    config: dict[str, Any]  # canonical, see fingerprint.identity
    inputs: dict[str, str]  # name of the input to its fingerprint
    provenance: dict[str, Any]
    accounting: dict[str, Any]  # what the step returned
    seconds: float


def write_record(out: Path, record: Record) -> None:
    """Make the step in `out` done: nothing else may be written there after this."""
    text = json.dumps(dataclasses.asdict(record), indent=1, sort_keys=True, allow_nan=False)
    replace_atomically(out / RECORD, text)


def read_record(out: Path) -> Record | None:
    """The record in `out`; None when there is none, or (with a warning) when it cannot be trusted."""
    file = out / RECORD
    try:
        return _parse(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:  # not UTF-8, not JSON, or not a record
        log.warning("%s is damaged (%s); the step counts as not done", file, error)
        return None


def explain_difference(old: Record, new_config: Mapping[str, Any], new_inputs: Mapping[str, str]) -> list[str]:
    """One line for each key that differs: "train.lr: 0.001 -> 0.002", "input extract: ab12cd34 -> ef56ab78"."""
    before, after = _flatten(old.config), _flatten(identity(new_config))
    lines = [f"{key}: {_show(before, key)} -> {_show(after, key)}" for key in _changed(before, after)]
    sources = (old.inputs, dict(new_inputs))
    shown = [{name: value[:SHORT] for name, value in source.items()} for source in sources]
    for name in _changed(*sources):
        lines.append(f"input {name}: {shown[0].get(name, 'absent')} -> {shown[1].get(name, 'absent')}")
    return lines


def latest_record(step_dir: Path) -> Record | None:
    """The newest finished run of a step, to explain why another one is needed."""
    files = sorted(step_dir.glob(f"*/{RECORD}"), key=lambda file: (file.stat().st_mtime_ns, file), reverse=True)
    return next((record for file in files if (record := read_record(file.parent))), None)


def _parse(content: bytes) -> Record:
    values = json.loads(content.decode())
    types: dict[str, type] = {field.name: dict for field in dataclasses.fields(Record)}
    types |= {"step": str, "fingerprint": str, "seconds": float}
    if not isinstance(values, dict) or set(values) != set(types):
        raise ValueError(f"its keys are not {', '.join(types)}")
    values["seconds"] = float(values["seconds"]) if isinstance(values["seconds"], int) else values["seconds"]
    if bad := [name for name, kind in types.items() if not isinstance(values[name], kind)]:
        raise ValueError(f"{bad[0]} is of the wrong type")
    return Record(**values)


def _flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted keys to leaves; a list, and an empty dict, is a leaf."""
    if not isinstance(value, dict) or not value and prefix:
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat |= _flatten(item, f"{prefix}.{key}" if prefix else key)
    return flat


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Keys whose values differ; 1, 1.0 and true differ, as they do in a fingerprint."""
    return [key for key in sorted({*before, *after}) if _show(before, key) != _show(after, key)]


def _show(values: Mapping[str, Any], key: str) -> str:
    return json.dumps(values[key], sort_keys=True) if key in values else "absent"
