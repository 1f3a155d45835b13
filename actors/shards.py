"""Hidden-state shards: Parquet, one row a token, committed once (pure: pyarrow and numpy).

Shapes: T rows of a shard, L captured layers, H hidden size. `hidden_states` is fixed_size_binary(L*H*2): bf16,
little-endian, layer-major. A shard file exists under its final name only when it is whole: it is written under a
temporary name, synced, and linked; the first committer wins. A `.json` manifest row beside it holds counts and sha256.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from actors.commit import commit_once, replace_atomically

ROW_GROUP_BYTES = 128 << 20


@dataclass(frozen=True)
class ShardMeta:
    """What the states in a shard are; kept in the Parquet schema."""

    verifier: str  # fingerprint
    layers: tuple[int, ...]
    hidden_size: int
    engine: str
    config_hash: str
    codec: str = "raw"

    @property
    def row_bytes(self) -> int:
        return len(self.layers) * self.hidden_size * 2


@dataclass(frozen=True)
class ManifestRow:
    """Account of one committed shard. `samples_in = samples + sum(dropped.values())`."""

    shard: int
    file: str  # name in the step's directory, or URI (actors/shard_store.py)
    rows: int
    bytes: int
    sha256: str
    config_hash: str
    samples_in: int
    samples: int
    supervised: int  # rows with loss_mask
    dropped: dict[str, int] = field(default_factory=dict)

    def dumps(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def loads(cls, text: str) -> "ManifestRow":
        return cls(**json.loads(text))


@dataclass
class SampleStates:
    """One conversation with its states."""

    sample: int  # row of prompts.parquet
    token_ids: np.ndarray  # [T] int32
    loss_mask: np.ndarray  # [T] bool: token was written by the verifier
    hidden_states: np.ndarray  # [T, L, H] uint16, bf16 bits


def shard_name(shard: int, num_shards: int) -> str:
    return f"part-{shard:05d}-of-{num_shards:05d}.parquet"


def manifest_name(shard: int, num_shards: int) -> str:
    """Of a shard's manifest row, beside it."""
    return shard_name(shard, num_shards).replace(".parquet", ".json")


def plan_shards(num_samples: int, samples_per_shard: int) -> list[range]:
    """Sample rows of each shard: disjoint, in order, all covered."""
    if num_samples < 1 or samples_per_shard < 1:
        raise ValueError(f"cannot plan shards of {samples_per_shard} for {num_samples} samples")
    return [range(a, min(a + samples_per_shard, num_samples)) for a in range(0, num_samples, samples_per_shard)]


def schema(meta: ShardMeta) -> pa.Schema:
    described = {f"eyrie.{k}": json.dumps(v) for k, v in asdict(meta).items()}
    return pa.schema(
        [
            ("sample", pa.int32()),
            ("position", pa.int32()),
            ("token_id", pa.int32()),
            ("loss_mask", pa.bool_()),
            ("hidden_states", pa.binary(meta.row_bytes)),
        ],
        metadata=described,
    )


def to_table(samples: list[SampleStates], meta: ShardMeta) -> pa.Table:
    """Rows of the samples in order; checks every shape against `meta`."""
    width = (len(meta.layers), meta.hidden_size)
    seen: set[int] = set()
    for s in samples:
        if s.sample in seen:
            raise ValueError(f"sample {s.sample} is given twice; a shard holds each of its samples once")
        seen.add(s.sample)
        if len(s.token_ids) == 0:
            raise ValueError(f"sample {s.sample} has no tokens; count it in `dropped` instead")
        expected = (len(s.token_ids), *width)
        if s.hidden_states.shape != expected or s.hidden_states.dtype != np.uint16:
            raise ValueError(f"sample {s.sample}: states {s.hidden_states.shape}, expected {expected} as uint16")
        assert len(s.loss_mask) == len(s.token_ids)
    lengths = [len(s.token_ids) for s in samples]
    states = [np.ascontiguousarray(s.hidden_states).reshape(len(s.token_ids), -1) for s in samples]
    flat = np.concatenate(states) if states else np.zeros((0, meta.row_bytes // 2), np.uint16)
    columns = [
        pa.array(np.repeat([s.sample for s in samples], lengths).astype(np.int32)),
        pa.array(np.concatenate([np.arange(n, dtype=np.int32) for n in lengths] or [np.zeros(0, np.int32)])),
        pa.array(np.concatenate([s.token_ids for s in samples] or [np.zeros(0)]).astype(np.int32)),
        pa.array(np.concatenate([s.loss_mask for s in samples] or [np.zeros(0)]).astype(bool)),
        pa.FixedSizeBinaryArray.from_buffers(pa.binary(meta.row_bytes), len(flat), [None, pa.py_buffer(flat)]),
    ]
    return pa.Table.from_arrays(columns, schema=schema(meta))


def with_account(table: pa.Table, samples: int, dropped: dict[str, int]) -> pa.Table:
    """The shard's table, which then says itself what went into it."""
    account = {"samples_in": samples + sum(dropped.values()), "dropped": dropped}
    return table.replace_schema_metadata({**table.schema.metadata, "eyrie.account": json.dumps(account)})


def write_table(table: pa.Table, where: Any) -> None:
    """`where`: a path, or a file to write to."""
    rows_per_group = max(1, ROW_GROUP_BYTES // table.schema.field("hidden_states").type.byte_width)
    pq.write_table(
        table, where, row_group_size=rows_per_group, compression="none", use_dictionary=False, write_statistics=False
    )


def commit(
    directory: Path, shard: int, num_shards: int, samples: list[SampleStates], meta: ShardMeta, dropped: dict[str, int]
) -> ManifestRow:
    """Write a shard and its manifest row; returns the row of whoever committed first."""
    final = directory / shard_name(shard, num_shards)
    table = with_account(to_table(samples, meta), len(samples), dropped)
    commit_once(final, lambda file: write_table(table, file))
    return write_manifest_row(final, shard)


def write_manifest_row(final: Path, shard: int) -> ManifestRow:
    """Derive the manifest row from a committed file, so that a crash between the two loses nothing."""
    table = pq.read_table(final, columns=["sample", "loss_mask"])
    row = account_of(table, shard, final.name, final.stat().st_size, file_sha256(final))
    replace_atomically(final.with_suffix(".json"), row.dumps())
    return row


def account_of(table: pa.Table, shard: int, file: str, size: int, sha256: str) -> ManifestRow:
    """Manifest row of a shard's table, of which the columns `sample` and `loss_mask` are enough."""
    metadata = table.schema.metadata or {}
    described = {k.decode(): json.loads(v) for k, v in metadata.items() if k.startswith(b"eyrie.")}
    row = ManifestRow(
        shard=shard,
        file=file,
        rows=table.num_rows,
        bytes=size,
        sha256=sha256,
        config_hash=described["eyrie.config_hash"],
        samples_in=described["eyrie.account"]["samples_in"],
        samples=len(table["sample"].unique()),
        supervised=pc.sum(table["loss_mask"]).as_py() or 0,
        dropped=described["eyrie.account"]["dropped"],
    )
    assert row.samples_in == row.samples + sum(row.dropped.values()), f"{file}: samples do not add up: {row}"
    return row


def committed(directory: Path, num_shards: int, config_hash: str) -> dict[int, ManifestRow]:
    """Manifest rows of the shards that are done. A file of another config is an error, not a match."""
    rows = {}
    for shard in range(num_shards):
        final = directory / shard_name(shard, num_shards)
        if not final.exists():
            continue
        manifest = final.with_suffix(".json")
        row = ManifestRow.loads(manifest.read_text()) if manifest.exists() else write_manifest_row(final, shard)
        if row.config_hash != config_hash:
            raise ValueError(f"{final} was written by config {row.config_hash}, not {config_hash}; move it away")
        rows[shard] = row
    return rows


def manifest_rows(directory: Path) -> list[ManifestRow]:
    """Of a finished extraction, in the order of the shards."""
    return [ManifestRow.loads(file.read_text()) for file in sorted(directory.glob("part-*.json"))]


def read_meta(file: Path) -> ShardMeta:
    """Meta of a committed shard."""
    described = pq.read_schema(file).metadata or {}
    names = ShardMeta.__dataclass_fields__
    values = {k: json.loads(described[f"eyrie.{k}".encode()]) for k in names}
    return ShardMeta(**{**values, "layers": tuple(values["layers"])})


def read_samples(file: Path) -> list[SampleStates]:
    """Samples of a shard in order; their states are read-only views of one array."""
    meta = read_meta(file)
    table = pq.read_table(file, memory_map=True).combine_chunks()
    if table.num_rows == 0:  # all of its samples were dropped
        return []
    sample = table["sample"].to_numpy()
    ids, mask = table["token_id"].to_numpy(), table["loss_mask"].to_numpy()
    states = _states_array(table["hidden_states"], meta)
    starts = np.flatnonzero(np.r_[True, sample[1:] != sample[:-1]])
    ends = np.r_[starts[1:], len(sample)]
    return [SampleStates(int(sample[a]), ids[a:b], mask[a:b], states[a:b]) for a, b in zip(starts, ends, strict=True)]


def _states_array(column: pa.ChunkedArray, meta: ShardMeta) -> np.ndarray:
    """[T, L, H] uint16 of a fixed_size_binary column."""
    shape = (len(meta.layers), meta.hidden_size)
    parts = []
    for chunk in column.chunks:
        raw = np.frombuffer(chunk.buffers()[1], np.uint16)
        begin = chunk.offset * meta.row_bytes // 2
        parts.append(raw[begin : begin + len(chunk) * meta.row_bytes // 2].reshape(len(chunk), *shape))
    return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else np.zeros((0, *shape), np.uint16)


def file_sha256(file: Path) -> str:
    with file.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
