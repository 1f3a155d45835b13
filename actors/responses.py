"""Finished conversations in Parquet, one row each, in the shards of the extraction that follows (pure)."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from actors.commit import commit_once
from actors.shards import ManifestRow, file_sha256

SCHEMA = pa.schema(
    [
        ("sample", pa.int32()),
        ("token_ids", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.bool_())),
        ("finish_reason", pa.string()),
    ]
)


@dataclass(frozen=True)
class Response:
    """A conversation as the engine read and wrote it: [T+1] token ids, with the last token."""

    sample: int
    token_ids: np.ndarray  # int32
    loss_mask: np.ndarray  # bool
    finish_reason: str


def response_name(shard: int, num_shards: int) -> str:
    return f"responses-{shard:05d}-of-{num_shards:05d}.parquet"


def commit_responses(
    directory: Path, shard: int, num_shards: int, responses: list[Response], dropped: dict[str, int]
) -> ManifestRow:
    """Write a shard of responses; the first committer wins."""
    columns = {
        "sample": [r.sample for r in responses],
        "token_ids": [r.token_ids for r in responses],
        "loss_mask": [r.loss_mask for r in responses],
        "finish_reason": [r.finish_reason for r in responses],
    }
    table = pa.table(columns, schema=SCHEMA).replace_schema_metadata({"eyrie.dropped": json.dumps(dict(dropped))})
    final = directory / response_name(shard, num_shards)
    commit_once(final, lambda file: pq.write_table(table, file))
    return response_row(final, shard)


def response_row(final: Path, shard: int) -> ManifestRow:
    """Account of a committed file, derived from it."""
    responses = read_responses(final)
    dropped = json.loads(pq.read_schema(final).metadata[b"eyrie.dropped"])
    return ManifestRow(
        shard=shard,
        file=final.name,
        rows=sum(len(r.token_ids) for r in responses),
        bytes=final.stat().st_size,
        sha256=file_sha256(final),
        config_hash="",
        samples_in=len(responses) + sum(dropped.values()),
        samples=len(responses),
        supervised=sum(int(r.loss_mask.sum()) for r in responses),
        dropped=dropped,
    )


def read_responses(file: Path) -> list[Response]:
    rows = pq.read_table(file).to_pylist()
    return [
        Response(r["sample"], np.array(r["token_ids"], np.int32), np.array(r["loss_mask"], bool), r["finish_reason"])
        for r in rows
    ]
