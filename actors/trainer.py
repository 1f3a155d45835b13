"""speculators' Trainer inside a Ray Train worker, on CPU or CUDA, with checkpoints of our own.

Three things in speculators 0.9.0 stand in the way and are bridged here, each in one place:
its process topology is module state that only torchrun fills (`adopt_process_group`), its step timer synchronises an
accelerator that a CPU worker lacks (`_CpuTimer`), and its checkpoints are bf16 and not atomic (`state`/`restore`).
"""

import logging
import time
from collections.abc import Callable
from typing import Any

import speculators.train.distributed as topology
import speculators.train.trainer as speculators_trainer
import torch
from torch.nn.parallel import DistributedDataParallel

from actors.cpu_environment import has_bf16
from actors.muon import orthogonalise_in_fp32
from actors.row_weight import weigh_rows

Report = Callable[[dict[str, Any]], None]


class _CpuTimer(speculators_trainer._StepTimer):
    def mark(self, name: str) -> None:
        if self.enabled:
            self._marks[name] = time.perf_counter()

    def now(self) -> float | None:
        return time.perf_counter() if self.enabled else None


def adopt_process_group(rank: int, world_size: int, device: torch.device) -> None:
    """Tell speculators about the process group that Ray Train made (its own set-up would make a second one)."""
    topology._rank, topology._world_size = rank, world_size
    topology._is_distributed = world_size > 1
    topology._local_rank = device if device.type == "cpu" else device.index
    if world_size > 1:
        topology._init_sp_process_groups(rank, world_size, 1)
    if device.type == "cpu":
        speculators_trainer._StepTimer = _CpuTimer
        if not has_bf16():
            orthogonalise_in_fp32()


class DraftTrainer(speculators_trainer.Trainer):
    """On `device`. Drive it by `train_epoch` and `val_epoch`, never by `run_training` (it sets signal handlers)."""

    def __init__(self, device: torch.device, *args: Any, **kwargs: Any):
        self._device = device
        super().__init__(*args, **kwargs)

    def setup_trainer(self) -> None:
        self.device_type = self._device.type
        super().setup_trainer()

    def setup_model(self) -> None:
        super().setup_model()
        weigh_rows(self.model)

    def _setup_model_ddp(self, load_checkpoint: bool) -> None:
        self.model.to(self._device)
        self.model: Any = DistributedDataParallel(self.model)  # broadcasts rank 0's weights

    @property
    def draft(self) -> torch.nn.Module:
        return self.model.module if isinstance(self.model, DistributedDataParallel) else self.model

    def trainable(self) -> dict[str, torch.Tensor]:
        """fp32 weights that training changes."""
        return {k: v.detach().cpu() for k, v in self.draft.named_parameters() if v.requires_grad}

    def take(self, trainable: dict[str, torch.Tensor]) -> None:
        own = dict(self.draft.named_parameters())
        for name, value in trainable.items():
            own[name].data.copy_(value)

    def state(self, epoch: int, step: int) -> dict[str, Any]:
        """Everything to go on after `epoch` finished epochs and `step` steps of the next: fp32, as on every worker."""
        return {
            "epoch": epoch,
            "step_in_epoch": step,
            "global_step": self.global_step,
            "trainable": self.trainable(),
            "optimizers": [o.state_dict() for o in self.optimizers],
            "schedulers": [s.state_dict() for s in self.schedulers],
        }

    def restore(self, state: dict[str, Any]) -> tuple[int, int]:
        """Take up a saved state; returns the number of finished epochs and of steps of the next."""
        self.take(state["trainable"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        for scheduler, saved in zip(self.schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(saved)
        self.global_step = state["global_step"]
        return state["epoch"], state["step_in_epoch"]


class MetricsTap(logging.Handler):
    """Hands speculators' training metrics, which it only logs, to a function."""

    def __init__(self, report: Report):
        super().__init__()
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.msg, dict):
            self._report(record.msg)


def tap_metrics(report: Report) -> None:
    logger = speculators_trainer.metric_logger
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.handlers = [MetricsTap(report)]
