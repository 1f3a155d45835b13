"""A step's gradient and metrics are means over its supervised tokens, whichever worker has them."""

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from actors.row_weight import weigh_rows

VALUES = torch.tensor([1.0, 2.0, 3.0, 50.0])
SUPERVISED = torch.tensor([True, True, True, False])


class Row(torch.nn.Module):
    """Loss and metrics in speculators' form: the mean over a row's supervised tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, values: Tensor, loss_mask: Tensor) -> tuple[list[Tensor], Tensor, dict[str, Tensor]]:
        loss = (self.weight * values * loss_mask).sum() / (loss_mask.sum() + 1e-5)
        right = loss_mask.sum().float()
        sums = {"loss_sum": loss.detach().clone(), "loss_total": torch.tensor(1.0)}
        return [], loss, sums | {"full_acc_0_sum": right, "full_acc_0_total": right.clone()}


def worker(rank: int, folder: str, cuts: list[int]) -> None:
    """Rank's part of VALUES, cut at `cuts`."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=len(cuts) + 1)
    mine = slice([0, *cuts][rank], [*cuts, len(VALUES)][rank])
    model: Any = Row() if not cuts else DistributedDataParallel(Row())
    weigh_rows(model)
    _, loss, metrics = model(values=VALUES[mine], loss_mask=SUPERVISED[mine])
    loss.backward()
    gradient = next(model.parameters()).grad
    for value in metrics.values():
        dist.all_reduce(value)
    model.eval()
    evaluated = model(values=VALUES[mine], loss_mask=SUPERVISED[mine])[2]
    for value in evaluated.values():
        dist.all_reduce(value)
    torch.save({"gradient": gradient, "metrics": metrics, "evaluated": evaluated}, f"{folder}/{rank}.pt")
    del model, loss  # DistributedDataParallel holds the group, whose threads must be gone before the interpreter is
    gc.collect()
    dist.destroy_process_group()


@pytest.mark.parametrize("cuts", [[], [1], [3], [4]], ids=["alone", "uneven", "one unsupervised", "one empty"])
def test_a_token_weighs_the_same_in_every_row(tmp_path: Path, cuts: list[int]) -> None:
    mp.spawn(worker, (str(tmp_path), cuts), nprocs=len(cuts) + 1)
    for rank in range(len(cuts) + 1):
        found = torch.load(tmp_path / f"{rank}.pt")
        assert found["gradient"].item() == pytest.approx(2, rel=1e-4)  # the mean of 1, 2 and 3
        for metrics in (found["metrics"], found["evaluated"]):
            assert metrics["loss_sum"] / metrics["loss_total"] == pytest.approx(2, rel=1e-4)
            assert metrics["full_acc_0_sum"] == metrics["full_acc_0_total"] == 3
