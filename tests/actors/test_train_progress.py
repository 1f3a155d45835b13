"""The rate of training, without the steps that compile."""

import pytest

from actors.metrics import Metrics
from actors.train_progress import WARM_UP, TrainProgress


def step(number: int, tokens: float, seconds: float) -> dict:
    profile = {"tokens_per_s": tokens / seconds, "step_ms": 1000 * seconds}
    return {"train": {"loss": 1.0, "full_acc_0": 0.5}, "profile": profile, "global_step": number}


def test_the_first_steps_do_not_count() -> None:
    progress = TrainProgress(30, 1e9, Metrics("train"))
    for number in range(WARM_UP):
        progress(step(number, 100, 50.0))
    for number in range(WARM_UP, 30):
        progress(step(number, 100, 0.5))
    assert progress.rate == pytest.approx(200)


def test_a_short_run_counts_its_second_half_and_none_has_no_rate() -> None:
    progress = TrainProgress(2, 1e9, Metrics("train"))
    assert progress.rate is None
    progress(step(0, 100, 50.0))
    progress(step(1, 100, 0.5))
    progress({"validation": {}})
    assert progress.rate == pytest.approx(200)
