"""Which epoch is the draft: the one that will have the most accepted, also when the run was killed in between."""

from pathlib import Path
from typing import Any

import pytest
import torch

from actors.step_sampler import StepSampler
from actors.train_position import PREDICTED, Position
from conf.schema import TrainConfig


class Trainer:
    """One weight, and the part of DraftTrainer that a Position uses; each epoch sets the weight to its number."""

    def __init__(self) -> None:
        self.global_step, self.weight = 0, torch.full((2,), -1.0)
        self.train_loader = self
        self.batch_sampler = StepSampler([4, 4], 8, 1, seed=0)

    def trainable(self) -> dict[str, torch.Tensor]:
        return {"weight": self.weight.clone()}

    def take(self, trainable: dict[str, torch.Tensor]) -> None:
        self.weight = trainable["weight"]

    def state(self, epoch: int, step: int) -> dict[str, Any]:
        return {
            "epoch": epoch,
            "step_in_epoch": step,
            "global_step": self.global_step,
            "trainable": self.trainable(),
            "optimizers": [],
            "schedulers": [],
        }

    def restore(self, state: dict[str, Any]) -> tuple[int, int]:
        self.take(state["trainable"])
        self.global_step = state["global_step"]
        return state["epoch"], state["step_in_epoch"]


def trained(folder: Path, lengths: list[float | None], killed_after: int | None = None) -> tuple[int, float]:
    """The draft's epoch and weight; `killed_after` that epoch another process goes on."""
    cfg, position = TrainConfig(epochs=len(lengths), lr=1.0), None
    for epoch, length in enumerate(lengths):
        if position is None or epoch - 1 == killed_after:
            trainer = Trainer()
            position = Position(trainer, cfg, folder, rank=0)  # type: ignore[arg-type]
            position.resume()
            assert position.epoch == epoch
        trainer.weight, trainer.global_step = torch.full((2,), float(epoch)), epoch + 1
        position.after_epoch({"loss": 1.0} if length is None else {"loss": 1.0, PREDICTED: length})
    assert position
    return position.take_best(), float(trainer.weight[0])


@pytest.mark.parametrize("killed_after", [None, 0, 1, 2])
@pytest.mark.parametrize(
    ("lengths", "best"),
    [
        ([1.1, 1.4, 1.3, 1.2], 1),
        ([1.1, 1.2, 1.3, 1.4], 3),
        ([1.4, 1.1, 1.4, 1.2], 2),  # of equals the one that trained longer
        ([None, None, None, None], 3),  # nothing was held out
    ],
)
def test_the_epoch_with_the_highest_predicted_acceptance_length_is_the_draft(
    lengths: list[float | None], best: int, killed_after: int | None, tmp_path: Path
) -> None:
    assert trained(tmp_path, lengths, killed_after) == (best, best)


def test_an_epoch_that_was_the_best_before_the_run_was_killed_and_is_not_when_made_again(tmp_path: Path) -> None:
    """Killed after its weights and before the checkpoint that counts it; on a GPU no two runs are alike."""
    cfg, trainer = TrainConfig(epochs=2, lr=1.0), Trainer()
    position = Position(trainer, cfg, tmp_path, rank=0)  # type: ignore[arg-type]
    trainer.weight = torch.full((2,), 0.0)
    position.after_epoch({PREDICTED: 1.5})
    trainer.weight, position._save = torch.full((2,), 9.0), killed  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        position.after_epoch({PREDICTED: 1.6})
    again = Position(Trainer(), cfg, tmp_path, rank=0)  # type: ignore[arg-type]
    again.resume()
    assert again.epoch == 1
    again.after_epoch({PREDICTED: 1.4})
    assert again.take_best() == 0 and float(again._trainer.trainable()["weight"][0]) == 0.0
    assert [file.name for file in tmp_path.glob("best-*")] == ["best-0000.pt"]


def killed() -> None:
    raise KeyboardInterrupt
