"""Hidden-state shards on an object store, through pyarrow's file systems: s3://, gs://, or file:// (pure).

A store cannot rename or link. So a shard's data goes under a name of its attempt's own, which exists only when the
upload is complete, and a small manifest object that names it is the commit. A committer that finds a manifest takes its
own data back. Two that commit at the very same moment both write one: the last names the data that counts, each data
object is whole, and the other is swept. The rows that a finished step recorded are what training reads.

A shard is then known by its URI, with the digest as fragment: `s3://bucket/run/part-00000-of-00002.9f….parquet#sha256`.
"""

import hashlib
import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSelector, FileSystem, FileType

from actors.halt import Halt
from actors.shards import ManifestRow, account_of, manifest_name, shard_name, write_table

log = logging.getLogger(__name__)
KEY = "extract.store"


class StoreError(Halt):
    """The store is not there, not ours, or gave up."""


def is_uri(file: str) -> bool:
    return "://" in file


def below(uri: str, name: str) -> str:
    """`name` below `uri`, whose query (endpoint, scheme) stays."""
    parts = urlsplit(uri)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))


def probe(uri: str) -> None:
    """StoreError unless an object can be written and deleted below `uri`: better now than after an engine's start."""
    with _opened(uri) as (fs, folder):
        fs.create_dir(folder)
        probed = f"{folder}/.probe-{uuid.uuid4().hex}"
        with fs.open_output_stream(probed) as out:
            out.write(b"eyrie")
        fs.delete_file(probed)


def commit_to(uri: str, shard: int, num_shards: int, table: pa.Table) -> ManifestRow:
    """Write a shard's table, with its account (actors/shards.py), and the manifest; the row of whoever was first."""
    name = shard_name(shard, num_shards)
    with _opened(uri) as (fs, folder):
        manifest = f"{folder}/{manifest_name(shard, num_shards)}"
        if (there := _standing(fs, manifest)) is not None:
            return there
        attempt = name.replace(".parquet", f".{uuid.uuid4().hex[:12]}.parquet")
        with fs.open_output_stream(f"{folder}/{attempt}") as out:
            hashing = _Hashing(out)
            write_table(table, pa.PythonFile(hashing, mode="w"))
        digest = hashing.digest.hexdigest()
        file = f"{below(uri, attempt)}#{digest}"
        row = account_of(table, shard, file, hashing.written, digest)
        if (there := _standing(fs, manifest)) is not None:
            fs.delete_file(f"{folder}/{attempt}")
            return there
        with fs.open_output_stream(manifest) as out:
            out.write(row.dumps().encode())
        return row


def committed_in(uri: str, num_shards: int, config_hash: str) -> dict[int, ManifestRow]:
    """Rows of the shards that are done, after data that no manifest names was swept.

    A manifest whose data is gone, or has another size, is deleted with a warning: its shard runs again.
    """
    with _opened(uri) as (fs, folder):
        sizes = {
            info.base_name: info.size
            for info in fs.get_file_info(FileSelector(folder, allow_not_found=True))
            if info.type is FileType.File
        }
        rows: dict[int, ManifestRow] = {}
        for shard in range(num_shards):
            manifest = manifest_name(shard, num_shards)
            if manifest not in sizes:
                continue
            row = _read(fs, f"{folder}/{manifest}")
            if row.config_hash != config_hash:
                raise StoreError(
                    f"{KEY}: {shown(uri)}/{manifest} was written by config {row.config_hash}, not {config_hash}; give "
                    "another store, or move it away"
                )
            data = _base(row.file)
            if sizes.get(data) != row.bytes:
                log.warning("%s has %s bytes, not %d: its shard runs again", data, sizes.get(data, "no"), row.bytes)
                fs.delete_file(f"{folder}/{manifest}")
                continue
            # the store may have another address by now: a mirror, another endpoint
            rows[shard] = replace(row, file=f"{below(uri, data)}#{row.sha256}")
        named = {_base(row.file) for row in rows.values()}
        for name in sizes:
            if name.endswith(".parquet") and name not in named:
                fs.delete_file(f"{folder}/{name}")
        return rows


def read_columns(file: str, names: list[str]) -> pa.Table:
    """Columns of a shard, by path or URI; of an object only those are fetched."""
    if not is_uri(file):
        return pq.read_table(file, columns=names)
    with _opened(file.partition("#")[0]) as (fs, path):
        return pq.read_table(path, columns=names, filesystem=fs)


@contextmanager
def reading(uri: str) -> Iterator[Any]:
    """A stream of an object's bytes."""
    with _opened(uri.partition("#")[0]) as (fs, path), fs.open_input_stream(path) as stream:
        yield stream


def shown(uri: str) -> str:
    """Without query and fragment: messages and logs are read by many."""
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.hostname or ''}{parts.path}"


@contextmanager
def _opened(uri: str) -> Iterator[tuple[FileSystem, str]]:
    """The file system and the path in it; what goes wrong in the block is a StoreError that says what to do."""
    if urlsplit(uri).username is not None:
        raise StoreError(f"{KEY}: {shown(uri)} holds credentials, which records would keep; give them by environment")
    try:
        fs, path = FileSystem.from_uri(uri)
        yield fs, path.rstrip("/")
    except (OSError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        told = " ".join(str(error).split())
        raise StoreError(
            f"{KEY}: {shown(uri)}: {told[:500]}. Look at the address (s3://bucket/folder, gs://bucket/folder), at the "
            "bucket's name and region, and at the credentials that pyarrow finds on every node (AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL, GOOGLE_APPLICATION_CREDENTIALS, or the machine's role). What is "
            "committed stays: the same command goes on from there."
        ) from error


def _standing(fs: FileSystem, manifest: str) -> ManifestRow | None:
    """The row of a commit that holds: a sweep may have taken the data of an attempt that wrote its manifest later."""
    if fs.get_file_info(manifest).type is FileType.NotFound:
        return None
    row = _read(fs, manifest)
    data = fs.get_file_info(f"{manifest.rpartition('/')[0]}/{_base(row.file)}")
    return row if data.size == row.bytes else None


def _read(fs: FileSystem, manifest: str) -> ManifestRow:
    with fs.open_input_stream(manifest) as stream:
        return ManifestRow.loads(stream.read().decode())


def _base(uri: str) -> str:
    return urlsplit(uri).path.rpartition("/")[2]


class _Hashing:
    """A file to write to that counts and digests on the way."""

    closed = False

    def __init__(self, out: Any):
        self._out = out
        self.digest, self.written = hashlib.sha256(), 0

    def write(self, data: Any) -> int:
        self.digest.update(data)
        self._out.write(data)
        size = memoryview(data).nbytes
        self.written += size
        return size

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True
