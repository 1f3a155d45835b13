"""Training checkpoints that can be trusted: fp32, atomic, complete or absent.

A checkpoint is a folder `step-00001234` that was renamed into place after everything in it was synced; what a crash
leaves keeps its temporary name and is never read.
"""

import logging
import pickle
import shutil
from pathlib import Path
from typing import Any

import torch

from actors.commit import whole_folder

log = logging.getLogger(__name__)
STATE = "state.pt"


def save(directory: Path, state: dict[str, Any], step: int, keep: int) -> Path:
    """Write `state` as the checkpoint of `step`; only the newest `keep` remain."""
    final = directory / f"step-{step:08d}"
    with whole_folder(final) as folder:  # the same step again, after a restart, replaces the first
        torch.save(state, folder / STATE)
    for old in _checkpoints(directory)[:-keep]:
        shutil.rmtree(old)
    return final


def load_newest(directory: Path) -> dict[str, Any] | None:
    """State of the newest checkpoint that can be read; damaged ones are passed over with a warning."""
    for folder in reversed(_checkpoints(directory)):
        try:
            return torch.load(folder / STATE, map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            log.warning("checkpoint %s cannot be read (%s); trying the one before", folder, error)
    return None


def _checkpoints(directory: Path) -> list[Path]:
    return sorted(directory.glob("step-*"))
