"""A file system of a few MiB that a test may fill."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[Path]:
    """`folder` as a tmpfs of its own; skips the test where this user may not mount one."""
    folder.mkdir()
    if error := mount(folder, mib):
        pytest.skip(f"a tmpfs cannot be mounted here: {error}")
    try:
        yield folder
    finally:
        unmount(folder)


def mount(folder: Path, mib: int) -> str | None:
    """A tmpfs at `folder`, or why not."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        return str(error)
    return done.stderr.strip() if done.returncode else None


def unmount(folder: Path) -> None:
    subprocess.run(["umount", "-l", str(folder)], check=True)
