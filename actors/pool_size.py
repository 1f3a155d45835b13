"""How many workers a running pool shall have: a number in a file that the pool reads and a command writes (pure)."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from actors.commit import replace_atomically

FILE = "workers"


@contextmanager
def pool_size(folder: Path, workers: int) -> Iterator[None]:
    """While the block lasts, a pool that works on `folder` wants `workers`, or what somebody wrote since."""
    write_size(folder, workers)
    try:
        yield
    finally:
        (folder / FILE).unlink(missing_ok=True)


def write_size(folder: Path, workers: int) -> None:
    replace_atomically(folder / FILE, f"{workers}\n")


def read_size(folder: Path) -> int:
    return int((folder / FILE).read_text())
