"""What a training worker is told (pure)."""

from dataclasses import dataclass

from actors.verifier import Verifier
from conf.schema import DraftConfig, TrainConfig


@dataclass(frozen=True)
class TrainJob:
    """All that a worker needs; paths must be visible from every node."""

    cfg: TrainConfig
    draft: DraftConfig
    verifier: Verifier
    shards: tuple[str, ...]  # paths, or URIs (actors/shard_store.py)
    train_samples: frozenset[int]
    val_samples: frozenset[int]
    out: str
    init_from: str | None = None  # folder of a draft whose vocabulary and weights training starts from
    kept: tuple[int, ...] = ()  # token ids that the draft's vocabulary holds whatever their count
