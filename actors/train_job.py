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
    shards: tuple[str, ...]
    train_samples: frozenset[int]
    val_samples: frozenset[int]
    out: str
