"""Training on Ray Train's workers: what a dead worker or an interrupted run loses, which is nothing.

A start of Ray Train costs seconds of imports, so the tests share the uninterrupted run.
"""

import asyncio
import json
import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from actors import training
from actors.capture import Job, run_shard
from actors.checkpoints import STATE, load_newest
from actors.contexts import CONTEXTS, read_contexts
from actors.draft_formats import write_flat
from actors.engine import EngineSpec, Sampling
from actors.fake_engine import FakeEngine
from actors.held_out import acceptance
from actors.held_out_file import HELD_OUT, answers_from_json
from actors.shards import ShardMeta
from actors.train_job import TrainJob
from actors.train_position import PREDICTED
from actors.verifier import read_verifier
from conf.schema import EngineConfig, EngineKind, Naming, TrainConfig
from tests.tiny_draft import TINY_DRAFT, rewrite_tensors, write_tiny_draft

CFG = TrainConfig(
    epochs=2,
    lr=1e-2,
    batch_tokens=256,
    bins=2,
    max_sample_tokens=128,
    precision="float32",
    use_gpu=False,
    attention="eager",
    loss_implementation="eager",
    max_failures=1,
    checkpoint_every_steps=2,
    keep_checkpoints=9,
)


@pytest.fixture(scope="module")
def job(local_ray: None, tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainJob:
    """Shards of 20 conversations, the last four of them for validation."""
    folder = tmp_path_factory.mktemp("shards")
    verifier, layers = read_verifier(tiny_llama), (*TINY_DRAFT.aux_layers, 4)
    rows = [{"sample": i, "id": str(i), "messages": [{"role": "user", "content": f"sum {i * 37}"}]} for i in range(20)]
    pq.write_table(pa.Table.from_pylist(rows), folder / "prompts.parquet")
    work = Job(
        prompts=str(folder / "prompts.parquet"),
        out=str(folder),
        ranges=((0, 12), (12, 20)),
        sampling=Sampling(max_new_tokens=40),
        keep_truncated=True,
        max_model_len=1024,
        meta=ShardMeta(verifier.fingerprint, layers, verifier.hidden_size, "fake", "c"),
    )
    engine = FakeEngine(EngineSpec(verifier.path, EngineConfig(kind=EngineKind.fake), capture_layers=layers))
    files = [str(folder / asyncio.run(run_shard(engine, work, shard)).file) for shard in range(2)]
    return TrainJob(CFG, TINY_DRAFT, verifier, tuple(files), frozenset(range(16)), frozenset(range(16, 20)), "")


@pytest.fixture(scope="module")
def whole(job: TrainJob, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Output of a run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "worker", recorded)
        training.fit(replace(job, out=str(folder)))
    return folder


def recorded(config: dict[str, Any]) -> None:
    """The worker's entry point; the lines that it logs, the rows that it trains on and each loss go to files too."""
    import ray.train

    from actors import train_loop
    from actors.step_sampler import StepSampler
    from actors.train_position import Position
    from actors.train_progress import TrainProgress

    rank = ray.train.get_context().get_world_rank()
    out, rows_of, resume = Path(config["job"].out), StepSampler.__iter__, Position.resume
    tapped = TrainProgress.__call__
    handler = logging.FileHandler(out / f"log-{rank}")
    logging.getLogger("eyrie.train").addHandler(handler)

    def note_rows(sampler: StepSampler) -> Any:
        for row in rows_of(sampler):
            if hasattr(sampler, "trained_on"):
                with (out / f"rows-{rank}").open("a") as file:
                    file.write(json.dumps([sampler._epoch, row]) + "\n")
            yield row

    def mark_training_data(position: Position) -> None:
        resume(position)
        position._sampler().trained_on = True

    def note_loss(progress: TrainProgress, message: dict[str, Any]) -> None:
        if "train" in message:
            with (out / "losses").open("a") as file:
                file.write(f"{message['train']['loss']!r}\n")
        tapped(progress, message)

    StepSampler.__iter__, Position.resume, TrainProgress.__call__ = note_rows, mark_training_data, note_loss
    try:
        train_loop.train_worker(config)
    finally:
        StepSampler.__iter__, Position.resume, TrainProgress.__call__ = rows_of, resume, tapped
        logging.getLogger("eyrie.train").removeHandler(handler)


def rows(folder: Path, rank: int = 0) -> list[tuple[int, list[int]]]:
    """Epoch and samples of each step of one worker."""
    return [(epoch, row) for epoch, row in map(json.loads, (folder / f"rows-{rank}").read_text().splitlines())]


def losses(folder: Path) -> list[float]:
    """Of each step, as it was made."""
    return [float(line) for line in (folder / "losses").read_text().splitlines()]


def metrics(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "metrics.json").read_text())


def dies_in_its_second_epoch(config: dict[str, Any]) -> None:
    """As `recorded`, but the process ends, once, a step after the checkpoint within that epoch."""
    from actors.train_position import Position

    marker, after_step = Path(config["job"].out) / "died", Position.after_step

    def die(position: Position) -> None:
        after_step(position)
        if (position.epoch, position.step) == (1, 3) and not marker.exists():
            marker.touch()
            os._exit(1)

    Position.after_step = die
    recorded(config)


def same_weights(folder: Path, other: Path) -> None:
    found, wanted = (load_newest(run / "checkpoints") for run in (folder, other))
    assert found is not None and wanted is not None
    assert (found["epoch"], found["step_in_epoch"]) == (wanted["epoch"], wanted["step_in_epoch"]) == (2, 0)
    assert found["global_step"] == wanted["global_step"]
    for name, weight in wanted["trainable"].items():
        assert torch.allclose(found["trainable"][name], weight, rtol=1e-4, atol=1e-5), name


def test_a_run_whose_worker_died_goes_on_within_the_epoch_to_the_same_weights(
    job: TrainJob, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "worker", dies_in_its_second_epoch)
    training.fit(replace(job, out=str(tmp_path), cfg=replace(job.cfg, keep_checkpoints=2)))
    assert (tmp_path / "died").exists()
    every, first = rows(whole), sum(epoch == 0 for epoch, _ in rows(whole))
    assert first > 2 and rows(tmp_path) == every[: first + 3] + every[first + 2 :]
    steps = len(every) - first
    line = f"resumes in epoch 2 of 2 after 2 of its {steps} steps, step {first + 2} in all; steps done again: 1"
    assert line in (tmp_path / "log-0").read_text()
    assert len(list((tmp_path / "checkpoints").glob("step-*"))) == 2
    wanted, found = metrics(whole), metrics(tmp_path)
    assert wanted.pop("tokens_per_s") > 0 and found.pop("tokens_per_s") > 0
    assert found["steps"] == wanted["steps"] == len(every)
    assert [entry["epoch"] for entry in found["history"]] == [0, 1]
    # on a CPU, to the last bit: the same seed gives the same curve, and a death is a step made twice
    assert losses(tmp_path) == losses(whole)[: first + 3] + losses(whole)[first + 2 :]
    assert found["history"] == wanted["history"]
    same_weights(tmp_path, whole)
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "draft" / name).read_bytes() == (whole / "draft" / name).read_bytes()


@pytest.mark.slow
def test_two_workers_go_on_where_one_was_past_a_damaged_checkpoint_to_the_same_weights(
    job: TrainJob, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every, first = rows(whole), sum(epoch == 0 for epoch, _ in rows(whole))
    for step in (2, first):
        shutil.copytree(whole / "checkpoints" / f"step-{step:08d}", tmp_path / "checkpoints" / f"step-{step:08d}")
    os.truncate(tmp_path / "checkpoints" / f"step-{first:08d}" / STATE, 5000)
    shutil.copy(whole / "vocabulary.pt", tmp_path)
    monkeypatch.setattr(training, "worker", recorded)
    training.fit(replace(job, out=str(tmp_path), cfg=replace(job.cfg, num_workers=2)))
    assert f"resumes in epoch 1 of 2 after 2 of its {first} steps" in (tmp_path / "log-0").read_text()
    both = zip(rows(tmp_path, 0), rows(tmp_path, 1), strict=True)
    together = [(epoch, sorted(one + other)) for (epoch, one), (_, other) in both]
    assert together == [(epoch, sorted(row)) for epoch, row in every[2:]]
    for one, other in zip(metrics(tmp_path)["history"], metrics(whole)["history"], strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-3)
    same_weights(tmp_path, whole)


@pytest.mark.slow
def test_a_run_that_ended_before_its_draft_was_saved_does_not_train_again(
    job: TrainJob, whole: Path, tmp_path: Path
) -> None:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "draft")
    (tmp_path / "metrics.json").unlink()
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "checkpoints").rglob("*")}
    training.fit(replace(job, out=str(tmp_path)))
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "checkpoints").rglob("*")} == before
    assert metrics(tmp_path) == metrics(whole) | {"tokens_per_s": None}
    wanted, found = (load_file(folder / "draft" / "model.safetensors") for folder in (whole, tmp_path))
    assert wanted.keys() == found.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_training_learns_and_leaves_a_bf16_draft_and_its_metrics(job: TrainJob, whole: Path) -> None:
    found = metrics(whole)
    first, last = found["history"]
    assert last["loss"] < first["loss"]
    assert found["supervised_tokens"] > 0 and 0 < found["vocab_coverage"] <= 1
    tensors = load_file(whole / "draft" / "model.safetensors")
    assert {t.dtype for t in tensors.values() if t.is_floating_point()} == {torch.bfloat16}
    assert not list(whole.glob(".tmp-*")) and not (whole / "unused").exists()
    predicted = [entry[PREDICTED] for entry in found["history"]]
    assert all(1 <= length <= 1 + CFG.ttt_steps for length in predicted)
    assert found["best_epoch"] == max(range(2), key=lambda epoch: (predicted[epoch], epoch))
    kept = answers_from_json(json.loads((whole / HELD_OUT).read_text()))
    assert kept.keys() == job.val_samples
    length = acceptance(kept, CFG.ttt_steps)  # of bf16 weights, where validation had fp32 ones
    assert length and length.acceptance_length == pytest.approx(predicted[found["best_epoch"]], abs=0.05)
    assert {one.sample for one in read_contexts(whole / CONTEXTS)} <= set(job.val_samples)


@pytest.mark.slow
def test_training_starts_from_a_published_draft_and_resumes_from_its_own_checkpoint(
    job: TrainJob, tmp_path: Path
) -> None:
    """A learning rate of nearly nothing leaves the weights as they began; what a checkpoint holds wins over them."""
    served, start = Path(job.verifier.path), tmp_path / "published"
    write_tiny_draft(tmp_path / "source", served)
    rewrite_tensors(tmp_path / "source", lambda tensors: tensors["lm_head.weight"].neg_())
    write_flat(tmp_path / "source", job.verifier, start, Naming.midlayer, 3)
    out, cfg = tmp_path / "out", replace(job.cfg, lr=1e-12, epochs=1, checkpoint_every_steps=500)
    out.mkdir()
    begun = replace(job, cfg=cfg, init_from=str(start), out=str(out))
    training.fit(begun)
    wanted, found = (load_file(folder / "model.safetensors") for folder in (tmp_path / "source", out / "draft"))
    assert wanted.keys() == found.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert 0 < metrics(out)["vocab_coverage"] < 0.5  # every eighth token, not the most frequent ones

    (checkpoint,) = (out / "checkpoints").glob("*/state.pt")
    state = torch.load(checkpoint, weights_only=True)
    state["trainable"]["fc.weight"].fill_(0.25)
    torch.save(state, checkpoint)
    shutil.rmtree(out / "draft")
    training.fit(begun)
    found = load_file(out / "draft" / "model.safetensors")
    assert torch.equal(found["fc.weight"], torch.full_like(wanted["fc.weight"], 0.25))
    assert torch.equal(found["lm_head.weight"], wanted["lm_head.weight"])
