"""Files that exist under their name only when they are whole (pure). A full disk is an OSError that names it."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from actors.full_disk import told_when_full

TEMPORARY = ".tmp-"


def commit_once(final: Path, write: Callable[[Path], None]) -> bool:
    """Write under a temporary name, sync, and link to `final`: the first committer wins. True when it was this one."""
    temporary = _temporary(final)
    try:
        with told_when_full(final, temporary):
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


@contextmanager
def whole_file(final: Path) -> Iterator[Path]:
    """A name to write to; the file becomes `final` when the block ends well. Readers see the old one or the new one."""
    temporary = _temporary(final)
    try:
        with told_when_full(final, temporary):
            yield temporary
            sync(temporary)
        os.replace(temporary, final)
        sync(final.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def whole_folder(final: Path) -> Iterator[Path]:
    """An empty folder to fill; it becomes `final`, in place of an older one, when the block ends well."""
    temporary = _temporary(final)
    temporary.mkdir(parents=True)
    try:
        with told_when_full(final, temporary):
            yield temporary
            for path in (*temporary.rglob("*"), temporary):
                sync(path)
        if final.exists():
            shutil.rmtree(final)
        os.rename(temporary, final)
        sync(final.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def replace_atomically(file: Path, text: str) -> None:
    """Write a small text file whole."""
    with whole_file(file) as temporary:
        temporary.write_text(text, encoding="utf-8")


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


def _temporary(final: Path) -> Path:
    return final.with_name(f"{TEMPORARY}{final.name}-{os.getpid()}-{time.monotonic_ns()}")
