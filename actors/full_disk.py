"""A full disk recognised, whichever library hit it, and said with the file system's name and numbers (pure)."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from actors.units import gib

FULL = (errno.ENOSPC, errno.EDQUOT)
TEXTS = tuple(os.strerror(number) for number in FULL)  # safetensors raises an error of its own, with this text
SAID = f"{TEXTS[0]}: the file system of "
TORCH = "inline_container"  # torch.save loses the cause: its writer says only where it stood
NOTHING = 1 << 20  # bytes free


@contextmanager
def told_when_full(final: Path, temporary: Path) -> Iterator[None]:
    """While `temporary`, a file or folder, is written to become `final`: an ENOSPC that says what would have fitted."""
    try:
        yield
    except Exception as error:
        if not is_full(error, final.parent):
            raise
        usage = shutil.disk_usage(final.parent)
        free = usage.free + size(temporary)  # which is removed
        raise OSError(
            errno.ENOSPC,
            f"{SAID}{final.parent} has {gib(free)} GiB free of {gib(usage.total)}, too little for {final.name}",
        ) from error


def is_full(error: BaseException, folder: Path) -> bool:
    """Whether `error`, raised while something was written below `folder`, is for want of room."""
    if isinstance(error, OSError) and error.errno in FULL:
        return True
    text = str(error)
    return any(known in text for known in TEXTS) or (TORCH in text and shutil.disk_usage(folder).free < NOTHING)


def told(error: BaseException) -> str | None:
    """What `told_when_full` said in another process, out of the error that came of it."""
    lines = [line for line in str(error).splitlines() if SAID in line]
    return SAID + lines[-1].split(SAID, 1)[1] if lines else None


def size(path: Path) -> int:
    """Bytes of a file, or of the files below a folder; 0 of nothing."""
    files = path.rglob("*") if path.is_dir() else (path,)
    return sum(file.stat().st_size for file in files if file.is_file())
