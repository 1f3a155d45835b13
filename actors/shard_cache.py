"""Shards of an object store on this node's disk, so that training may map them into memory like local ones (pure)."""

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from actors.commit import whole_file
from actors.shard_store import StoreError, reading, shown

CHUNK = 8 << 20  # bytes


class ShardCache:
    """Workers of a node share `folder`; a shard is fetched by one of them, and trusted once its digest is right.

    `limit` in bytes: what was used least lately goes first. Fetching again and again is slow: let all shards fit.
    """

    def __init__(self, folder: str | None, limit: int | None):
        self._folder = Path(folder or Path(tempfile.gettempdir()) / f"eyrie-shards-{os.getuid()}")
        self._limit = limit

    def get(self, uri: str) -> Path:
        """The shard `uri`, which ends in `#sha256`. StoreError when it cannot be had or is not what was written."""
        digest = uri.partition("#")[2]
        self._folder.mkdir(parents=True, exist_ok=True)
        final = self._folder / f"{digest}.parquet"
        with self._locked(digest):
            if not final.exists():
                self._fetch(uri, digest, final)
            os.utime(final)
        return final

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
        """A file that is mapped stays readable when it is gone."""
        if self._limit is None:
            return
        files = sorted(self._folder.glob("*.parquet"), key=lambda file: file.stat().st_mtime_ns)
        held = sum(file.stat().st_size for file in files)
        while files and held + needed > self._limit:
            held -= files[0].stat().st_size
            files.pop(0).unlink(missing_ok=True)

    @contextmanager
    def _locked(self, digest: str) -> Iterator[None]:
        with (self._folder / f".{digest}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
