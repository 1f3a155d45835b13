"""Held-out conversations in training: the acceptance length that the draft would have on them now."""

from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist

from actors.acceptance import Acceptance
from actors.contexts import Context
from actors.predicted_acceptance import answers, proposals
from actors.shard_dataset import ShardDataset
from actors.speculation import Answer, accepted_steps, counters
from actors.train_data import loader, row_samples
from actors.train_job import TrainJob

CONTEXTS_KEPT = 16
SAMPLES = 512  # at most; more would cost time and tell little more


class HeldOut:
    """The first validation conversations, packed as in training; every worker reads its share of them."""

    def __init__(self, job: TrainJob, dtype: torch.dtype, rank: int, world: int):
        self._dtype = dtype
        self._rows = loader(job, frozenset(sorted(job.val_samples)[:SAMPLES]), dtype, rank, world)

    def predict(self, model: Any, steps: int) -> dict[int, Answer]:
        """First answer of each conversation, by sample number, the same on every worker."""
        if self._rows is None:
            return {}
        found: dict[int, Answer] = {}
        device = model.fc.weight.device.type
        training = model.training
        model.eval()
        with self._autocast(device):
            for samples, row in zip(row_samples(self._rows), self._rows, strict=True):
                pairs = zip(samples, answers(row, proposals(model, row, steps), len(samples)), strict=True)
                found |= {sample: answer for sample, answer in pairs if answer}
        model.train(training)
        if dist.is_initialized() and dist.get_world_size() > 1:
            shares: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(shares, found)
            found = {sample: answer for share in shares for sample, answer in share.items()}
        return dict(sorted(found.items()))

    def _autocast(self, device: str) -> AbstractContextManager[Any]:
        # as speculators' trainer validates
        return torch.autocast(device, dtype=self._dtype, enabled=self._dtype != torch.float32)


def acceptance(found: dict[int, Answer], k: int) -> Acceptance | None:
    """Over all answers, with `k` draft tokens a step; None when no answer is long enough to tell."""
    counted = counters((step for answer in found.values() for step in accepted_steps(answer, k)), k)
    return Acceptance.of(counted) if counted.drafts else None


def contexts(job: TrainJob, dtype: torch.dtype) -> list[Context]:
    """How the first held-out conversations begin; training ones where none is held out."""
    held = sorted(job.val_samples) or sorted(job.train_samples)
    rows = loader(job, frozenset(held[:CONTEXTS_KEPT]), dtype, 0, 1)
    if rows is None:
        return []
    data = rows.dataset
    assert isinstance(data, ShardDataset)
    return [data.context(index) for index in range(len(data))]
