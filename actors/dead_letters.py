"""Samples that a shard was finished without, since they took the engine down: one Parquet file a shard (pure)."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from actors.commit import whole_file

FOLDER = "dead-letters"
SCHEMA = pa.schema([("sample", pa.int32()), ("id", pa.string()), ("error", pa.string())])


def write_dead_letters(out: Path, shard: int, letters: list[tuple[int, str, str]]) -> Path:
    """Letters of (sample, prompt id, error); an older file of the shard is replaced."""
    folder = out / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    columns = [list(column) for column in zip(*letters, strict=True)]
    table = pa.Table.from_arrays([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
    file = folder / f"shard-{shard:05d}.parquet"
    with whole_file(file) as temporary:
        pq.write_table(table, temporary)
    return file


def read_dead_letters(out: Path) -> list[dict]:
    """All letters below a step's folder, in the order of the shards."""
    return [row for file in sorted((out / FOLDER).glob("*.parquet")) for row in pq.read_table(file).to_pylist()]
