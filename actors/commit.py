"""Files that exist under their name only when they are whole (pure)."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

TEMPORARY = ".tmp-"


def commit_once(final: Path, write: Callable[[Path], None]) -> bool:
    """Write under a temporary name, sync, and link to `final`: the first committer wins. True when it was this one."""
    temporary = final.with_name(f"{TEMPORARY}{final.name}-{os.getpid()}-{time.monotonic_ns()}")
    try:
        write(temporary)
        sync(temporary)
        try:
            os.link(temporary, final)
        except FileExistsError:
            return False
        sync(final.parent)
        return True
    finally:
        temporary.unlink(missing_ok=True)


def replace_atomically(file: Path, text: str) -> None:
    """Write a small text file whole: readers see the old one or the new one."""
    temporary = file.with_name(f"{TEMPORARY}{file.name}-{os.getpid()}-{time.monotonic_ns()}")
    try:
        temporary.write_text(text)
        sync(temporary)
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


def sweep(directory: Path) -> int:
    """Remove what dead attempts left behind, folders too; returns how many. Call only while nobody writes."""
    stale = list(directory.glob(f"{TEMPORARY}*"))
    for path in stale:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return len(stale)


def sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
