"""Room for the shards of one step: what they may take, what they do take, and the message when that is all (pure).

Whoever writes a shard knows its exact size and asks first, so that the disk is not filled; ENOSPC, from others who
write there too, ends in the same message. Workers see each other's claims: together they stay within a budget.
"""

import contextlib
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from actors.commit import TEMPORARY
from actors.full_disk import is_full
from actors.halt import Halt
from actors.units import GIB, gib

ROW_BYTES = 13  # of a shard beside the states: sample, position, token id, loss mask
FOOTER = 16 << 10  # bytes: schema, metadata, the manifest row
PAGES = 1.001  # headers
SPARE = 1.05  # on what is still to come, where a message names a value to give
CLAIM = f"{TEMPORARY}room-"  # and a shard: an empty file whose nominal size is what the shard will take
KEY = "extract.disk_budget_gib"


class DiskFull(Halt):
    """Says what is committed, what is still to come, how much is missing and what to do."""


@dataclass(frozen=True)
class Usage:
    """What a step's folder holds."""

    shards: int
    committed: int  # bytes, like the next one
    claimed: int  # by shards that are being written, or were when their writer died


@dataclass(frozen=True)
class Budget:
    """Of the step whose shards lie in `folder`; `limit` in bytes, or None for what the file system has."""

    folder: Path
    num_shards: int
    limit: int | None = None

    @contextmanager
    def room(self, shard: int, needed: int) -> Iterator[None]:
        """For writing a shard of `needed` bytes: DiskFull before the block, or out of it when the disk fills up."""
        claim = self.folder / f"{CLAIM}{shard}"
        try:
            with claim.open("wb") as file:
                file.truncate(needed)  # sparse
            if needed > self.left(shard):
                raise self.full(needed, shard)
            yield
        except Exception as error:
            if isinstance(error, DiskFull) or not is_full(error, self.folder):
                raise
            raise self.full(needed, shard, filled=True) from error
        finally:
            claim.unlink(missing_ok=True)

    def left(self, shard: int | None = None) -> int:
        """Bytes that may still be written, by whoever does `shard`."""
        free = free_bytes(self.folder)
        if self.limit is None:
            return free
        used = usage(self.folder, shard)
        return max(0, min(free, self.limit - used.committed - used.claimed))

    def full(self, needed: int, shard: int | None = None, *, filled: bool = False) -> DiskFull:
        """The error for a shard of `needed` bytes; `filled`: others took the room while it was written."""
        used, free = usage(self.folder, shard), free_bytes(self.folder)
        rest = max(1, self.num_shards - used.shards)
        each = used.committed / used.shards if used.shards else needed
        to_come = math.ceil(max(needed, rest * each) * SPARE)
        over = self.limit is not None and needed > self.limit - used.committed - used.claimed
        begin = f"{KEY}: {gib(self.limit or 0)} GiB" if over else f"output_root: {self.folder}"
        mean = ", the mean so far," if used.shards else ""
        told = [
            f"{begin}: no room for the next shard.",
            f"Committed: {used.shards} of {self.num_shards} shards, {gib(used.committed)} GiB. The next takes "
            f"{gib(needed)}; still to come are about {gib(to_come)}: {rest} of {gib(math.ceil(each))}{mean} and 5 % to "
            "spare.",
        ]
        if over:
            enough = used.committed + max(to_come, used.claimed + needed)
            told.append(
                f"The budget lacks {gib(enough - (self.limit or 0))} GiB: give {KEY}={_up(enough)}, or null for what "
                "the file system has."
            )
        lacking = to_come - free
        if filled and lacking <= 0:
            lacking = to_come  # a quota: what is free is not for us
        told.append(f"The file system has {gib(free)} GiB free{'.' if lacking <= 0 else ''}")
        if lacking > 0:
            told[-1] += f" and lacks {gib(lacking)} GiB: free that much, or give an output_root on a larger disk."
        told.append(
            "What is committed stays: the same command goes on from there (in another output_root, from a copy of it)."
        )
        return DiskFull(" ".join(told))


def shard_bytes(rows: int, state_bytes: int) -> int:
    """Size of a shard file and its manifest row, at most; `state_bytes` of one row's states."""
    return math.ceil(rows * (state_bytes + ROW_BYTES) * PAGES) + FOOTER


def usage(folder: Path, without: int | None = None) -> Usage:
    """Committed shards, and claims of others than shard `without`."""
    shards: set[str] = set()
    claims: dict[str, int] = {}
    committed = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # a claim that was given back meanwhile
                if entry.name.startswith("part-"):
                    committed += entry.stat().st_size
                    if entry.name.endswith(".parquet"):
                        shards.add(str(int(entry.name.split("-")[1])))
                elif entry.name.startswith(CLAIM):
                    claims[entry.name.removeprefix(CLAIM)] = entry.stat().st_size
    claimed = sum(size for shard, size in claims.items() if shard not in shards and shard != str(without))
    return Usage(len(shards), committed, claimed)


def free_bytes(folder: Path) -> int:
    """What the file system of `folder`, or of its nearest parent that exists, has free."""
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return shutil.disk_usage(there).free


def _up(count: int) -> str:
    """GiB in three digits, no fewer than `count` bytes."""
    amount = count / GIB
    step = 10 ** (math.floor(math.log10(amount)) - 2)
    return f"{math.ceil(amount / step) * step:.3g}" if amount < 100 else f"{math.ceil(amount)}"
