"""Training and validation data of one worker, as speculators' trainer takes them."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from speculators.models.eagle3.data import shift_batch
from speculators.train.data import CollateFn
from speculators.train.recovery import RECOVERY_METADATA_KEY
from torch.utils.data import DataLoader

from actors.shard_cache import ShardCache
from actors.shard_dataset import ShardDataset
from actors.step_sampler import StepSampler
from actors.train_job import TrainJob
from actors.units import GIB


class Rows(CollateFn):
    """One packed row; an empty one is the end of an epoch here, not the lost data that speculators would warn of."""

    def __call__(self, batch: Sequence[Any]) -> dict[str, Any]:
        row = super().__call__(batch)
        row.pop(RECOVERY_METADATA_KEY, None)
        return row


def loaders(job: TrainJob, dtype: torch.dtype, rank: int, world: int) -> tuple[DataLoader, DataLoader | None]:
    """Rows of this worker in a training and a validation epoch; None without validation conversations."""
    training = loader(job, job.train_samples, dtype, rank, world)
    if training is None:
        raise ValueError("train: no conversation to train on has states; remove extract's record.json and run again")
    return training, loader(job, job.val_samples, dtype, rank, world)


def loader(job: TrainJob, samples: frozenset[int], dtype: torch.dtype, rank: int, world: int) -> DataLoader | None:
    """Packed rows of this worker's share of `samples`; None when none of them has states."""
    cfg = job.cfg
    cache = ShardCache(cfg.shard_cache, None if cfg.shard_cache_gib is None else int(cfg.shard_cache_gib * GIB))
    bin_tokens = cfg.batch_tokens // cfg.bins
    row_tokens = bin_tokens * cfg.bins // world
    collate = Rows(row_tokens, job.verifier.hidden_size, len(job.draft.aux_layers), dtype, preprocess=shift_batch)
    data = ShardDataset(job.shards, set(samples), cfg.max_sample_tokens, dtype, cache)
    sampler = StepSampler(data.approx_lengths, bin_tokens, cfg.bins, seed=cfg.seed, rank=rank, world=world)
    return DataLoader(data, batch_sampler=sampler, collate_fn=collate) if len(data) else None


def row_samples(rows: DataLoader) -> Iterator[list[int]]:
    """Sample numbers of the conversations in each row, in the order of its documents."""
    data, sampler = rows.dataset, rows.batch_sampler
    assert isinstance(data, ShardDataset) and sampler is not None
    for row in sampler:
        yield [data.sample(index) for index in row]


def steps_of(loader: DataLoader, epochs: int) -> int:
    """Optimizer steps of a whole run: epochs differ by a few, since each is packed anew."""
    sampler = loader.batch_sampler
    assert isinstance(sampler, StepSampler)
    return sum(len(sampler.steps(epoch)) for epoch in range(epochs))
