"""Shards of an object store on this node's disk, so that training may map them into memory like local ones (pure)."""

import contextlib
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, TypeVar

from actors.commit import whole_file
from actors.shard_store import StoreError, reading, shown

CHUNK = 8 << 20  # bytes
T = TypeVar("T")


class ShardCache:
    """Workers of a node share `folder`; a shard is fetched by one of them, and trusted once its digest is right.

    `limit` in bytes: what was used least lately goes first. Fetching again and again is slow: let all shards fit.
    """

    def __init__(self, folder: str | None, limit: int | None):
        self._folder = Path(folder or Path(tempfile.gettempdir()) / f"eyrie-shards-{os.getuid()}")
        self._limit = limit

    def read(self, uri: str, reader: Callable[[Path], T]) -> T:
        """What `reader` makes of the shard `uri`, which ends in `#sha256`; nobody evicts the file while it reads.

        What it maps stays readable afterwards. StoreError when the shard cannot be had or is not what was written.
        """
        digest = uri.partition("#")[2]
        self._folder.mkdir(parents=True, exist_ok=True)
        final = self._folder / f"{digest}.parquet"
        with self._lock(digest) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not final.exists():
                self._fetch(uri, digest, final)
            os.utime(final)
            return reader(final)

    def _fetch(self, uri: str, digest: str, final: Path) -> None:
        found = hashlib.sha256()
        with whole_file(final) as temporary, reading(uri) as stream:
            with temporary.open("wb") as out:
                while chunk := stream.read(CHUNK):
                    found.update(chunk)
                    out.write(chunk)
            if found.hexdigest() != digest:
                raise StoreError(
                    f"{shown(uri)}: its sha256 is {found.hexdigest()[:12]}, and {digest[:12]} was committed. Delete it "
                    "and its manifest (.json), and the extract step's record.json: the shard runs again."
                )
            self._evict(temporary.stat().st_size)

    def _evict(self, needed: int) -> None:
        """Make room for `needed` bytes, as far as others are not reading what is there."""
        if self._limit is None:
            return
        found = [(file.stat(), file) for file in self._folder.glob("*.parquet")]
        held = sum(stat.st_size for stat, _ in found)
        for stat, file in sorted(found, key=lambda entry: entry[0].st_mtime_ns):
            if held + needed <= self._limit:
                return
            with contextlib.suppress(BlockingIOError), self._lock(file.stem) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                file.unlink(missing_ok=True)
                held -= stat.st_size

    def _lock(self, digest: str) -> IO[str]:
        return (self._folder / f".{digest}.lock").open("w")
