"""Checkpoints: whole or absent, the newest that can be read, never more than asked for."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from actors.checkpoints import STATE, load_newest, save
from actors.commit import TEMPORARY


def state(step: int) -> dict:
    weights = torch.full((64, 64), float(step))
    return {"epoch": step // 10, "trainable": {"w": weights}, "history": [{"epoch": 0, "loss": 0.5}]}


def names(directory: Path) -> list[str]:
    return sorted(file.name for file in directory.iterdir())


def newest(directory: Path) -> float:
    found = load_newest(directory)
    assert found is not None
    return found["trainable"]["w"][0, 0].item()


def test_nothing_saved_is_nothing_loaded(tmp_path: Path) -> None:
    assert load_newest(tmp_path / "absent") is None


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    saved = state(20)
    save(tmp_path / "c", saved, 20, 2)
    found = load_newest(tmp_path / "c")
    assert found is not None and torch.equal(found["trainable"].pop("w"), saved["trainable"].pop("w"))
    assert found == saved


def test_the_state_of_real_optimizers_and_schedules_can_be_loaded_as_plain_data(tmp_path: Path) -> None:
    from transformers import get_cosine_schedule_with_warmup

    weight = torch.nn.Parameter(torch.ones(4, 4))
    optimizers = [torch.optim.Muon([weight]), torch.optim.AdamW([weight])]
    weight.grad = torch.ones(4, 4)
    schedules = [get_cosine_schedule_with_warmup(o, 1, 10) for o in optimizers]
    for one in (*optimizers, *schedules):
        one.step()
    saved = {"optimizers": [o.state_dict() for o in optimizers], "schedulers": [s.state_dict() for s in schedules]}
    save(tmp_path, saved, 1, 1)
    found = load_newest(tmp_path)
    assert found is not None and found["schedulers"][0]["last_epoch"] == 1
    optimizers[1].load_state_dict(found["optimizers"][1])


def test_only_the_newest_stay_by_number_and_not_by_name_length(tmp_path: Path) -> None:
    for step in (9, 10, 100, 1000):
        save(tmp_path, state(step), step, 2)
    assert names(tmp_path) == ["step-00000100", "step-00001000"]
    assert newest(tmp_path) == 1000


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(bytes(file.stat().st_size)),
        lambda file: file.unlink(),
    ],
    ids=["half", "empty", "zeros", "missing"],
)
def test_a_damaged_newest_one_is_passed_over_with_a_warning(
    tmp_path: Path, damage: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    for step in (10, 20):
        save(tmp_path, state(step), step, 2)
    damage(tmp_path / "step-00000020" / STATE)
    with caplog.at_level(logging.WARNING):
        assert newest(tmp_path) == 10
    assert "step-00000020 cannot be read" in caplog.text
    damage(tmp_path / "step-00000010" / STATE)
    assert load_newest(tmp_path) is None


def test_what_a_crash_left_is_never_read(tmp_path: Path) -> None:
    save(tmp_path, state(10), 10, 2)
    left = tmp_path / f"{TEMPORARY}step-00000020-1"
    left.mkdir()
    torch.save(state(20), left / STATE)
    assert newest(tmp_path) == 10


def test_the_same_step_saved_again_replaces_the_first(tmp_path: Path) -> None:
    save(tmp_path, state(10), 10, 2)
    save(tmp_path, {**state(10), "trainable": {"w": torch.full((1, 1), 7.0)}}, 10, 2)
    assert newest(tmp_path) == 7 and names(tmp_path) == ["step-00000010"]
