"""A disk that is too small, through real Ray workers: one message, no second try, and the same command goes on."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.disk import DiskFull
from actors.full_disk import SAID
from actors.shards import SampleStates, ShardMeta, commit, committed, read_samples
from actors.train_job import TrainJob
from actors.training import fit
from actors.verifier import read_verifier
from conf.schema import TrainConfig
from tests.full_disk import small_disk
from tests.tiny_draft import TINY_DRAFT
from tests.tiny_run import run
from workflows import runner
from workflows.errors import ConfigError
from workflows.step import Step

SHARDS = 5
BUDGET = 0.0009  # GiB, of the 0.0016 that the shards take


def test_a_budget_ends_the_run_on_the_way_and_a_larger_one_makes_only_the_rest(
    local_ray: None, tiny_llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(DiskFull) as caught:
        run(tmp_path, tiny_llama, f"extract.disk_budget_gib={BUDGET}", "extract.workers.max=2")
    message = str(caught.value)
    for part in (
        f"extract.disk_budget_gib: {BUDGET:.2g} GiB: no room for the next shard",
        "of 5 shards",
        "The budget lacks",
        "goes on",
    ):
        assert part in message, (part, message)
    assert "Traceback" not in message and not [line for line in caplog.messages if "died" in line]
    (out,) = (tmp_path / "root" / "extract").iterdir()
    done = committed(out, SHARDS, out.name)
    assert 0 < len(done) < SHARDS and sum(row.bytes for row in done.values()) <= BUDGET * (1 << 30)
    assert all(read_samples(out / row.file) for row in done.values())
    assert not (out / "record.json").exists() and not (tmp_path / "root" / ".lease").exists()
    assert not (out / "workers").exists()
    before = {file: file.stat().st_mtime_ns for file in out.glob("part-*")}

    def enough(*_: Any) -> dict[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr("workflows.eagle3.train", enough)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, tiny_llama, "extract.disk_budget_gib=1")
    assert (out / "record.json").exists() and len(committed(out, SHARDS, out.name)) == SHARDS
    assert {file: file.stat().st_mtime_ns for file in before} == before
    assert not list(out.glob(".tmp-*"))


@pytest.fixture
def job(tiny_llama: Path, tmp_path: Path) -> TrainJob:
    """One shard of eight conversations, two of them for validation."""
    verifier, layers = read_verifier(tiny_llama), (*TINY_DRAFT.aux_layers, 4)
    meta = ShardMeta(verifier.fingerprint, layers, verifier.hidden_size, "fake", "c")
    draw = np.random.default_rng(0)
    samples = [
        SampleStates(
            number,
            draw.integers(3, 259, 40).astype(np.int32),
            np.ones(40, bool),
            draw.integers(0x3E00, 0x3F80, (40, len(layers), verifier.hidden_size)).astype(np.uint16),
        )
        for number in range(8)
    ]
    commit(tmp_path, 0, 1, samples, meta, {})
    cfg = TrainConfig(
        epochs=1, lr=1e-3, batch_tokens=512, max_sample_tokens=256, precision="float32", use_gpu=False,
        attention="eager", loss_implementation="eager", max_failures=0,
    )  # fmt: skip
    shards = tuple(map(str, tmp_path.glob("part-*.parquet")))
    return TrainJob(cfg, TINY_DRAFT, verifier, shards, frozenset(range(6)), frozenset({6, 7}), "")


@pytest.mark.slow
def test_a_checkpoint_without_room_ends_training_in_a_message_that_names_the_disk(
    local_ray: None, job: TrainJob, tmp_path: Path
) -> None:
    def train(_: dict[str, Path], out: Path) -> dict[str, Any]:
        fit(replace(job, out=str(out)))
        return {}

    with small_disk(tmp_path / "disk", 2) as disk:
        with pytest.raises(ConfigError, match=r"output_root: no room left .*resumes train") as caught:
            runner.run([Step("train", {}, (), train)], disk, min_free=0)
        message = str(caught.value)
        assert SAID in message and "/checkpoints has" in message and "too little for step-" in message
        assert "Traceback" not in message and "\n" not in message
        assert not list(disk.rglob(".tmp-step-*")) and not list(disk.rglob("step-*"))
        assert not (disk / ".lease").exists() and not list(disk.rglob("record.json"))
