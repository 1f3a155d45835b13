"""Where a training run stands: which epoch, which step in it, and the checkpoints that let it go on from there."""

import logging
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from actors import checkpoints
from actors.commit import whole_file
from actors.step_sampler import StepSampler
from actors.trainer import DraftTrainer
from conf.schema import TrainConfig

log = logging.getLogger("eyrie.train")
PREDICTED = "predicted_acceptance_length"  # of a validation: the epoch that has the highest one is the draft


class Position:
    """Every worker has one and calls all of it at the same steps; rank 0 writes.

    Nothing random is drawn in training but the order of the samples, which seed, epoch and step give: a draft has no
    dropout. So no generator's state is saved.
    """

    def __init__(self, trainer: DraftTrainer, cfg: TrainConfig, directory: Path, rank: int) -> None:
        self._trainer, self._cfg, self._directory, self._rank = trainer, cfg, directory, rank
        self._reached: int | None = None  # file descriptor
        self.epoch, self.step = 0, 0  # finished epochs, and finished steps of the next
        self.history: list[dict[str, Any]] = []  # validation of each finished epoch

    def resume(self) -> None:
        """Take up the newest checkpoint that can be read, if there is one."""
        reached = _number(self._directory / "reached")
        saved = checkpoints.load_newest(self._directory)
        _same_for_all(saved["global_step"] if saved else 0)
        if saved:
            self.epoch, self.step = self._trainer.restore(saved)
            self.history = list(saved["history"])
        self._sampler().start(self.epoch, self.step)
        if self._rank == 0 and (saved or reached):
            again = max(0, reached - self._trainer.global_step)
            log.info("train: resumes %s; steps done again: %d", self, again)

    def after_step(self) -> None:
        """speculators' step callback."""
        self.step += 1
        if self._rank:
            return
        self._mark(self._trainer.global_step)
        # the end of an epoch has its checkpoint after validation
        if self.step % self._cfg.checkpoint_every_steps == 0 and self.step < len(self._sampler().steps(self.epoch)):
            self._save()

    def after_epoch(self, validation: dict[str, float]) -> None:
        self.history.append({"epoch": self.epoch, **validation})
        best = self._weights(self._best())
        if self._rank == 0 and self._best() == self.epoch:
            with whole_file(best) as file:  # before the checkpoint that counts this epoch
                torch.save(self._trainer.trainable(), file)
        self.epoch, self.step = self.epoch + 1, 0
        if self._rank == 0:
            self._save()
            for file in set(self._directory.glob("best-*.pt")) - {best}:
                file.unlink()

    def take_best(self) -> int:
        """Give the trainer the weights of the epoch that is the draft; returns its number."""
        best = self._best()
        if best < len(self.history) - 1:
            self._trainer.take(torch.load(self._weights(best), map_location="cpu", weights_only=True))
            log.info("train: the draft is that of epoch %d, which will have the most accepted", best + 1)
        return best

    def _best(self) -> int:
        """The epoch with the highest predicted acceptance length; the last one where nothing was held out."""
        lengths = [entry.get(PREDICTED, float(index)) for index, entry in enumerate(self.history)]
        return max(range(len(lengths)), key=lambda index: (lengths[index], index))

    def _weights(self, epoch: int) -> Path:
        """Of an epoch's own name: one that is trained again after a death may not be the best any more."""
        return self._directory / f"best-{epoch:04d}.pt"

    def __str__(self) -> str:
        if self.epoch >= self._cfg.epochs:
            return f"after the last of {self._cfg.epochs} epochs, step {self._trainer.global_step}"
        steps = len(self._sampler().steps(self.epoch))
        return (
            f"in epoch {self.epoch + 1} of {self._cfg.epochs} after {self.step} of its {steps} steps, "
            f"step {self._trainer.global_step} in all"
        )

    def _sampler(self) -> StepSampler:
        sampler = self._trainer.train_loader.batch_sampler
        assert isinstance(sampler, StepSampler)
        return sampler

    def _save(self) -> None:
        state = {**self._trainer.state(self.epoch, self.step), "history": self.history}
        checkpoints.save(self._directory, state, self._trainer.global_step, self._cfg.keep_checkpoints)

    def _mark(self, step: int) -> None:
        """Note how far the run got, only to say what a dead one lost: never synced, so it costs nothing."""
        if self._reached is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._reached = os.open(self._directory / "reached", os.O_WRONLY | os.O_CREAT)
        os.pwrite(self._reached, f"{step:012d}".encode(), 0)


def _number(file: Path) -> int:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return 0


def _same_for_all(step: int) -> None:
    """Workers that went on from different checkpoints would train nonsense without a word."""
    if not dist.is_initialized():
        return
    steps: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(steps, step)
    if len(set(steps)) > 1:
        raise RuntimeError(f"train: the workers read checkpoints of steps {steps}; output_root must be shared by all")
