"""The whole DAG on a fake engine under a real local Ray: what a run leaves, what a second one repeats, and what not.

Training starts cost seconds of imports: tests share one finished run, and each that changes it works on a copy.
"""

import json
import logging
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors import step_progress
from actors.shards import read_samples
from tests.tiny_run import read_report, run

STEPS = ["prompts", "extract", "train", "convert", "benchmark"]


def mtimes(root: Path, *steps: str) -> dict[str, int]:
    """Times of everything below the steps' folders."""
    files = (file for step in steps for file in (root / step).rglob("*"))
    return {str(file.relative_to(root)): file.stat().st_mtime_ns for file in files}


def out(root: Path, step: str) -> Path:
    """The only folder of a step."""
    (folder,) = (root / step).iterdir()
    return folder


def ran(caplog: pytest.LogCaptureFixture) -> dict[str, str]:
    """Steps that the run log says were run, with the reason."""
    lines = (re.fullmatch(r"(\w+) +[0-9a-f]{8}  runs: (.*)", line) for line in caplog.messages)
    return {line[1]: line[2] for line in lines if line}


@pytest.fixture(scope="module")
def finished(local_ray: None, tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a fused run with one training worker."""
    folder = tmp_path_factory.mktemp("dag")
    run(folder, tiny_llama)
    return folder


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_every_step_leaves_a_record_and_the_report_adds_up(finished: Path) -> None:
    root, report = finished / "root", read_report(finished)
    assert list(report["steps"]) == STEPS
    for step in STEPS:
        record = json.loads((out(root, step) / "record.json").read_text())
        assert record["accounting"] == report["steps"][step]["accounting"]
        assert record["fingerprint"].startswith(out(root, step).name)
    for name in ("prompts", "extract"):
        found = report[name]
        assert found["in"] == found["used"] + sum(found["dropped"].values()) and found["unaccounted"] == 0
    assert report["prompts"]["used"] == report["extract"]["in"] == 18
    extracted = report["steps"]["extract"]["accounting"]
    samples = [s for file in sorted(out(root, "extract").glob("part-*.parquet")) for s in read_samples(file)]
    assert extracted["samples"] == len(samples) and extracted["shards"] == 5
    assert extracted["rows"] == sum(len(s.token_ids) for s in samples)
    assert extracted["supervised"] == sum(int(s.loss_mask.sum()) for s in samples)
    trained = report["steps"]["train"]["accounting"]
    assert trained["epochs"] == 1 and trained["steps"] > 0 and trained["val"]["loss"] > 0
    assert report["steps"]["convert"]["accounting"]["gate"]["output_tokens"] == 2 * 24
    found = report["benchmark"]["sets"]["asked"]
    assert found["prompts"] == 4
    assert found["acceptance_length"] == pytest.approx(1 + found["accepted"] / found["drafts"])
    assert report["serve"].keys() == {"speculators", "flat"}
    for form, line in report["serve"].items():
        assert str(out(root, "convert") / form) in line


def test_nothing_temporary_is_left(finished: Path) -> None:
    assert [file for file in (finished / "root").rglob(".tmp-*")] == []
    assert not (finished / "root" / ".lease").exists()


def test_the_same_command_again_skips_every_step_and_rewrites_nothing(
    finished: Path, tiny_llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before, report = mtimes(finished / "root", *STEPS), read_report(finished)
    with caplog.at_level(logging.INFO):
        run(finished, tiny_llama, "cluster.address=nowhere:1")  # a run that finds all done asks nothing of Ray
    assert ran(caplog) == {}
    assert sum("done before" in line for line in caplog.messages) == len(STEPS)
    assert mtimes(finished / "root", *STEPS) == before and read_report(finished) == report


@pytest.mark.slow
def test_another_learning_rate_runs_training_and_what_follows_and_says_why(
    copied: Path, tiny_llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With two workers, whose number changes nothing that is done."""
    root = copied / "root"
    before = mtimes(root, *STEPS)
    with caplog.at_level(logging.INFO):
        run(copied, tiny_llama, "train.lr=2e-3", "train.num_workers=2")
    reasons = ran(caplog)
    assert list(reasons) == ["train", "convert", "benchmark"]
    assert reasons["train"] == "train.lr: 0.001 -> 0.002"
    assert "input train:" in reasons["convert"]
    after = mtimes(root, *STEPS)
    kept = [name for name in before if name.count("/") > 1 or (root / name).is_file()]
    assert kept and all(after[name] == before[name] for name in kept)
    assert len(list((root / "train").iterdir())) == 2
    trained = read_report(copied)["steps"]["train"]["accounting"]
    assert trained["steps"] > 0 and np.isfinite(trained["val"]["loss"])


def steps_until(name: str, folder: Path, verifier: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> None:
    """A run in `folder` that ends before `name`, as if its driver had been killed there."""
    folder.mkdir(exist_ok=True)

    def killed(*_: Any) -> dict[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"workflows.eagle3.{name}", killed)
    with pytest.raises(KeyboardInterrupt):
        run(folder, verifier, *more)


def test_the_same_command_elsewhere_makes_the_same_shards_byte_for_byte(
    finished: Path, tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps_until("train", tmp_path, tiny_llama, monkeypatch, "generate.temperature=0.7", "extract.shards_in_flight=3")
    steps_until("train", tmp_path / "again", tiny_llama, monkeypatch, "generate.temperature=0.7")
    one, other = (out(folder / "root", "extract") for folder in (tmp_path, tmp_path / "again"))
    assert one.name == other.name != out(finished / "root", "extract").name
    shards = sorted(one.glob("part-*.parquet"))
    assert len(shards) == 5 and [file.name for file in shards] == sorted(f.name for f in other.glob("part-*.parquet"))
    assert all(file.read_bytes() == (other / file.name).read_bytes() for file in shards)


def test_two_passes_give_the_same_tokens_and_states(
    copied: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = copied / "root"
    fused = out(root, "extract")
    steps_until("train", copied, tiny_llama, monkeypatch, "extract.mode=two_pass")
    assert len(list(out(root, "generate").glob("responses-*.parquet"))) == 5
    (two_pass,) = (folder for folder in (root / "extract").iterdir() if folder != fused)
    files = sorted(file.name for file in fused.glob("part-*.parquet"))
    assert files == sorted(file.name for file in two_pass.glob("part-*.parquet"))
    for file in files:
        for one, other in zip(read_samples(fused / file), read_samples(two_pass / file), strict=True):
            assert one.sample == other.sample
            for key in ("token_ids", "loss_mask", "hidden_states"):
                assert np.array_equal(getattr(one, key), getattr(other, key))


def test_an_extraction_that_was_killed_makes_only_what_is_missing(
    copied: Path, tiny_llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = out(copied / "root", "extract")
    lost = folder / "part-00002-of-00005.parquet"
    content = lost.read_bytes()
    for file in (lost, lost.with_suffix(".json"), folder / "record.json"):
        file.unlink()
    (folder / ".tmp-part-00002-of-00005.parquet-9-9").write_bytes(content[:100])
    (folder / "gates" / "part-00002-of-00005.json").unlink()
    files = (file for file in folder.rglob("*") if file.is_file() and not file.name.startswith(".tmp-"))
    notes = {step_progress.FILE, step_progress.POOL}  # of how far it is: no part of what the step leaves
    before = {file: file.stat().st_mtime_ns for file in files if file.name not in notes}
    assert len(before) >= 3 * 4  # data, manifest and gate of each of the other shards
    with caplog.at_level(logging.INFO):
        run(copied, tiny_llama)
    assert ran(caplog) == {"extract": "unfinished, resumes where it stopped"}
    assert "extract: 4 of 5 shards were committed before" in caplog.messages
    assert {file: file.stat().st_mtime_ns for file in before} == before
    assert lost.read_bytes() == content
    found = read_report(copied)["extract"]
    assert found["in"] == found["used"] + sum(found["dropped"].values()) == 18
    assert not list(folder.glob(".tmp-*"))


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("benchmark", r"the engine draft died"),
        ("extract", r"extract: conversations \[16\] took the engine down, alone and more than once"),
    ],
)
@pytest.mark.slow
def test_an_engine_that_dies_ends_the_run_without_a_record_and_it_resumes(
    step: str, message: str, copied: Path, tiny_llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Every prompt of the fake template begins with "<", which kills the engine."""
    folder = out(copied / "root", step)
    for file in folder.iterdir():
        if file.suffix == ".json" or "00004" in file.name:  # of extract, one shard is left to do
            file.unlink()
    with pytest.raises(RuntimeError, match=message):
        run(copied, tiny_llama, f"+engine.extra.die_on_token={3 + ord('<')}")
    assert not (folder / "record.json").exists() and not (copied / "root" / ".lease").exists()
    caplog.clear()
    with caplog.at_level(logging.INFO):
        run(copied, tiny_llama)
    assert list(ran(caplog)) == [step]
