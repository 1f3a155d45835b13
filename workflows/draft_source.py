"""Drafts that somebody else trained: from `train.init_from` and `benchmark.reference_draft` to checked folders.

The keys are paths or hub ids, and a path is no identity: the steps that read such a draft get its content as an input.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from actors.draft_import import check_start, read_draft
from actors.draft_shapes import WEIGHTS
from actors.layer_ids import LAYERS_BEFORE
from actors.shards import file_sha256
from actors.verifier import Verifier
from conf.schema import EyrieConfig, LayerIds
from workflows.model_source import hub_folder, local_folder


@dataclass(frozen=True)
class PublishedDraft:
    """A checked folder. `fingerprint` covers the bytes of config.json and of the weights, and what its ids mean."""

    folder: Path
    fingerprint: str
    layer_ids: LayerIds


def init_from(cfg: EyrieConfig, verifier: Verifier) -> PublishedDraft | None:
    """The draft that training goes on from. ValueError when it does not fit the verifier or the draft.* keys."""
    key = "train.init_from"
    if cfg.train.init_from is None:
        return None
    folder = _folder(key, cfg.train.init_from)
    ids = cfg.train.init_layer_ids
    check_start(key, folder, cfg.draft, verifier, ids)
    return PublishedDraft(folder, content(folder, ids), ids)


def reference_draft(cfg: EyrieConfig, verifier: Verifier) -> PublishedDraft | None:
    """The draft that ours is compared with. ValueError when it is no whole draft of this verifier."""
    key = "benchmark.reference_draft"
    if cfg.benchmark.reference_draft is None:
        return None
    folder = _folder(key, cfg.benchmark.reference_draft)
    ids = cfg.benchmark.reference_layer_ids
    read_draft(key, folder, verifier, ids)
    return PublishedDraft(folder, content(folder, ids), ids)


def inputs(**drafts: PublishedDraft | None) -> dict[str, str]:
    """What a step's identity has of them."""
    return {name: draft.fingerprint for name, draft in drafts.items() if draft}


def content(folder: Path, ids: LayerIds) -> str:
    """The same for the same files read in the same way, wherever they lie."""
    digests = "".join(file_sha256(folder / name) for name in ("config.json", WEIGHTS))
    return hashlib.sha256(f"{digests} ids begin at {LAYERS_BEFORE[ids]}".encode()).hexdigest()


def _folder(key: str, source: str) -> Path:
    return (local_folder(key, source) or hub_folder(key, source)).resolve()
