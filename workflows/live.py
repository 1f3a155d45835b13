"""Progress on a terminal: a line for each piece of work under way, below what is logged. Elsewhere there is none."""

import functools
import logging
import sys
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class StderrHandler(logging.StreamHandler):
    """Writes to what sys.stderr is now: while a live line is shown, that keeps it below."""

    def __init__(self, stream: TextIO | None = None) -> None:  # hydra's defaults give one
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:
        return sys.stderr


@functools.cache
def live() -> Progress | None:
    """The one of this process; None when stderr is no terminal."""
    if not sys.stderr.isatty():
        return None
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[said]}"),
        TimeRemainingColumn(compact=True),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=4)
