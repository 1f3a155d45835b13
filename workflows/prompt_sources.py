"""Reads one configured source of prompts, whatever its kind, into conversations."""

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from actors.shards import file_sha256
from conf.schema import PromptsConfig, SourceConfig, SourceKind
from workflows.bundled import BundledSet, bundled_set
from workflows.conversation import Conversation, parse

log = logging.getLogger(__name__)
ID_COLUMN = "id"  # used when a source has it; else the row number

Row = dict[str, Any] | None  # None: a line that is no JSON object


@dataclass
class Source:
    """What a source held: every row is in `conversations` or counted in `malformed`."""

    conversations: list[Conversation] = field(default_factory=list)
    malformed: int = 0


def read_source(key: str, source: SourceConfig) -> Source:
    """Read a whole source; `key` is its place in the config (prompts.sources.x), for messages."""
    if source.kind is SourceKind.bundled:
        return Source(list(_bundled(key, source).loader()))
    rows = _file_rows(key, source) if source.kind is SourceKind.file else _hub_rows(key, source)
    return _conversations(key, source.column, rows)


def source_identity(key: str, source: SourceConfig) -> dict[str, str]:
    """What names a source's content, for fingerprints: never where a file lies.

    A hub set is named by its id only: upstream changes are not seen.
    """
    if source.kind is SourceKind.bundled:
        return {"bundled": source.path, "content": _bundled(key, source).identity()}
    if source.kind is SourceKind.file:
        return {"sha256": file_sha256(_file(key, source))}
    return {"hub": source.path, "split": source.split}


def prompts_identity(cfg: PromptsConfig) -> dict[str, Any]:
    """The `prompts` section and the contents of its sources; where a file lies is no part of it.

    Names of sources and evals are unique (workflows/checks.py).
    """
    groups = {"sources": cfg.sources, "evals": cfg.evals}
    contents = {
        name: source_identity(f"prompts.{group}.{name}", source)
        for group, sets in groups.items()
        for name, source in sets.items()
    }
    placeless = {
        group: {n: replace(s, path="") if s.kind is SourceKind.file else s for n, s in sets.items()}
        for group, sets in groups.items()
    }
    section = replace(cfg, sources=placeless["sources"], evals=placeless["evals"])
    return {"prompts": section, "sources": contents}


def _bundled(key: str, source: SourceConfig) -> BundledSet:
    try:
        return bundled_set(source.path)
    except ValueError as error:
        raise ValueError(f"{key}.path: {error}") from None


def _conversations(key: str, column: str, rows: Iterator[Row]) -> Source:
    """Malformed rows are counted and the first is logged; a source without one readable row is an error."""
    found = Source()
    seen_columns: dict[str, None] = {}
    first_error = ""
    for number, row in enumerate(rows):
        seen_columns.update(dict.fromkeys(row or ()))
        try:
            if row is None:
                raise ValueError("not a JSON object")
            if column not in row:
                raise ValueError(f"no column {column!r}")
            row_id = row.get(ID_COLUMN)
            found.conversations.append(Conversation(str(number if row_id is None else row_id), parse(row[column])))
        except ValueError as error:
            found.malformed += 1
            first_error = first_error or f"row {number}: {error}"
    if seen_columns and column not in seen_columns:
        raise _unknown_column(key, column, list(seen_columns))
    if found.malformed and not found.conversations:
        raise ValueError(f"{key}: none of its {found.malformed} rows can be read ({first_error}); see {key}.column")
    if found.malformed:
        log.warning("%s: %d malformed rows dropped, first %s", key, found.malformed, first_error)
    return found


def _unknown_column(key: str, column: str, columns: list[str]) -> ValueError:
    return ValueError(f"{key}.column: no column {column!r}; there are: {', '.join(sorted(columns)) or 'none'}")


def _file(key: str, source: SourceConfig) -> Path:
    file = Path(source.path).expanduser()
    if not file.is_file():
        raise ValueError(f"{key}.path: there is no file {file}; give a .jsonl or .parquet file")
    return file


def _file_rows(key: str, source: SourceConfig) -> Iterator[Row]:
    file = _file(key, source)
    if file.suffix == ".jsonl":
        return _jsonl_rows(file)
    if file.suffix == ".parquet":
        return _parquet_rows(key, source.column, file)
    raise ValueError(f"{key}.path: {file.name} is neither .jsonl nor .parquet; convert it to one of these")


def _jsonl_rows(file: Path) -> Iterator[Row]:
    with file.open("rb") as lines:
        yield from (_json_object(line) for line in lines if line.strip())


def _json_object(line: bytes) -> Row:
    try:
        value = json.loads(line)
    except ValueError:  # no JSON, or no UTF-8: the reader counts it
        return None
    return value if isinstance(value, dict) else None


def _parquet_rows(key: str, column: str, file: Path) -> Iterator[Row]:
    parquet = pq.ParquetFile(file)
    columns = parquet.schema_arrow.names
    if column not in columns:
        raise _unknown_column(key, column, columns)
    for batch in parquet.iter_batches(columns=[c for c in (ID_COLUMN, column) if c in columns]):
        yield from batch.to_pylist()


def _hub_rows(key: str, source: SourceConfig) -> Iterator[Row]:
    """Rows of a hub data set; `datasets` also takes a local folder of Parquet or JSON lines."""
    from datasets import load_dataset  # takes a second

    try:
        rows = load_dataset(source.path, split=source.split)
    except (OSError, ValueError) as error:  # not found, offline, gated, unknown split, several configurations
        raise ValueError(
            f"{key}.path: cannot load data set {source.path!r}, split {source.split!r}: {error} "
            f"Check the id and {key}.split, log in for a gated set, or download it and use kind=file."
        ) from error
    if source.column not in rows.column_names:
        raise _unknown_column(key, source.column, rows.column_names)
    return iter(rows.select_columns([c for c in (ID_COLUMN, source.column) if c in rows.column_names]))
