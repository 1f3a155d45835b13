"""The runner: skip what is done, resume what is not, say why, one driver at a time."""

import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from workflows.artifact import RECORD, read_record
from workflows.lease import LEASE, STALE, lease
from workflows.progress import Progress, duration
from workflows.provenance import clean_argv, provenance
from workflows.runner import in_order, print_plan, run
from workflows.step import Step


class Pipeline:
    """prompts -> extract -> train; counts runs, and fails where told to."""

    def __init__(self, *, lr: float = 0.1, source: str = "a", verifier: str = "v1", fail: str = "") -> None:
        self.ran: list[str] = []
        self.fail = fail
        self.prompts = self.step("prompts", {"source": source}, ())
        self.extract = self.step("extract", {"mode": "fused"}, (self.prompts,), {"verifier": verifier})
        self.train = self.step("train", {"train": {"lr": lr}}, (self.extract, self.prompts))
        self.steps = [self.train, self.prompts, self.extract]

    def step(
        self, name: str, config: dict[str, Any], deps: tuple[Step, ...], inputs: Mapping[str, str] | None = None
    ) -> Step:
        def go(given: dict[str, Path], out: Path) -> dict[str, Any]:
            self.ran.append(name)
            read = {dep: (folder / "data").read_text() for dep, folder in given.items()}
            with (out / "attempts").open("a") as file:
                file.write("x")
            if self.fail == name:
                raise RuntimeError(f"{name} broke")
            (out / "data").write_text(name)
            return {"read": read, "attempts": len((out / "attempts").read_text())}

        return Step(name, config, deps, go, inputs or {})


def test_runs_in_order_hands_over_directories_and_writes_records(tmp_path: Path) -> None:
    pipeline = Pipeline()
    records = run(pipeline.steps, tmp_path)
    assert pipeline.ran == ["prompts", "extract", "train"]
    assert records["train"].accounting["read"] == {"extract": "extract", "prompts": "prompts"}
    assert records["train"].inputs == {s.name: s.fingerprint for s in (pipeline.extract, pipeline.prompts)}
    for step in pipeline.steps:
        assert step.out(tmp_path) == tmp_path / step.name / step.fingerprint[:8]
        assert read_record(step.out(tmp_path)) == records[step.name]


def test_what_a_step_needs_is_run_without_being_asked_for(tmp_path: Path) -> None:
    pipeline = Pipeline()
    assert set(run([pipeline.train], tmp_path)) == {"prompts", "extract", "train"}


def test_second_run_does_nothing_and_returns_the_same_records(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = run(Pipeline().steps, tmp_path)
    again = Pipeline()
    with caplog.at_level(logging.INFO):
        assert run(again.steps, tmp_path) == first
    assert again.ran == []
    assert len([line for line in caplog.messages if "done before" in line]) == 3


def test_a_changed_key_reruns_its_step_and_what_follows_and_says_which(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(Pipeline().steps, tmp_path)
    changed = Pipeline(lr=0.2)
    with caplog.at_level(logging.INFO):
        run(changed.steps, tmp_path)
    assert changed.ran == ["train"]
    assert any("train.lr: 0.1 -> 0.2" in line for line in caplog.messages)
    other = Pipeline(verifier="v2")
    run(other.steps, tmp_path)
    assert other.ran == ["extract", "train"]


def test_fingerprints_do_not_depend_on_the_root(tmp_path: Path) -> None:
    first = run(Pipeline().steps, tmp_path / "a")
    second = run(Pipeline().steps, tmp_path / "b")
    assert {n: r.fingerprint for n, r in first.items()} == {n: r.fingerprint for n, r in second.items()}


def test_a_failing_step_raises_and_resumes_in_its_directory(tmp_path: Path) -> None:
    broken = Pipeline(fail="extract")
    with pytest.raises(RuntimeError, match="extract broke"):
        run(broken.steps, tmp_path)
    assert broken.ran == ["prompts", "extract"]
    assert not (broken.extract.out(tmp_path) / RECORD).exists()
    assert not (tmp_path / LEASE).exists()
    healed = Pipeline()
    records = run(healed.steps, tmp_path)
    assert healed.ran == ["extract", "train"]
    assert records["extract"].accounting["attempts"] == 2
    assert [records[name].provenance["resumed"] for name in ("prompts", "extract", "train")] == [False, True, False]


def test_a_damaged_record_is_not_done(tmp_path: Path) -> None:
    first = Pipeline()
    run(first.steps, tmp_path)
    (first.prompts.out(tmp_path) / RECORD).write_text('{"step": "prom')
    again = Pipeline()
    run(again.steps, tmp_path)
    assert again.ran == ["prompts"]


def test_a_record_of_something_else_is_refused(tmp_path: Path) -> None:
    first = Pipeline()
    run(first.steps, tmp_path)
    file = first.train.out(tmp_path) / RECORD
    file.write_text(json.dumps(json.loads(file.read_text()) | {"fingerprint": first.train.fingerprint[:8] + "0" * 56}))
    with pytest.raises(ValueError, match="output_root.*Move that directory away"):
        run(Pipeline().steps, tmp_path)


def test_dry_run_prints_the_plan_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "root"
    dry = Pipeline()
    assert print_plan(dry.steps, root) == {}
    assert not root.exists() and dry.ran == []
    run(Pipeline().steps, root)
    capsys.readouterr()
    before = sorted(root.rglob("*"))
    done = print_plan(Pipeline(lr=0.2).steps, root)
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["step", "fingerprint", "needs", "state", "why"]
    assert [line.split()[0] for line in lines] == ["prompts", "extract", "train"]
    assert f"{dry.prompts.short}" in lines[0] and "done    record of 20" in lines[0]
    assert lines[2].endswith("extract, prompts  to run  train.lr: 0.1 -> 0.2")
    assert set(done) == {"prompts", "extract"} and sorted(root.rglob("*")) == before


def test_dry_run_works_while_another_driver_runs(tmp_path: Path) -> None:
    with lease(tmp_path):
        print_plan(Pipeline().steps, tmp_path)


def test_two_steps_of_one_name_are_our_mistake() -> None:
    with pytest.raises(AssertionError, match="one name"):
        in_order([Pipeline().prompts, Pipeline().prompts])


def test_root_that_cannot_be_written_or_is_full_names_output_root(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ValueError, match="output_root: cannot write.*Give a directory"):
            run(Pipeline().steps, root)
    with pytest.raises(ValueError, match="output_root: .*GiB free.*Make room"):
        run(Pipeline().steps, tmp_path, min_free=1 << 80)


def test_second_driver_is_refused_and_told_who_runs(tmp_path: Path) -> None:
    with lease(tmp_path), pytest.raises(ValueError, match=rf"output_root.*process {os.getpid()} on.*Wait for it"):
        run(Pipeline().steps, tmp_path)
    run(Pipeline().steps, tmp_path)  # free again


def write_lease(root: Path, *, host: str, pid: int, seconds_ago: float) -> None:
    with lease(root):
        who = json.loads((root / LEASE).read_text())
    (root / LEASE).write_text(json.dumps(who | {"host": host, "pid": pid}))
    then = (root / LEASE).stat().st_mtime - seconds_ago
    os.utime(root / LEASE, (then, then))


def dead_pid() -> int:
    return int(subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True).stdout)


@pytest.mark.parametrize(
    ("here", "alive", "seconds_ago", "held"),
    [
        (True, True, 0, True),
        (True, False, 0, False),
        (True, True, STALE + 1, False),
        (False, False, 0, True),  # another host's processes cannot be seen
        (False, False, STALE + 1, False),
    ],
)
def test_a_lease_holds_while_it_beats_and_its_process_lives(
    tmp_path: Path, here: bool, alive: bool, seconds_ago: float, held: bool
) -> None:
    host = socket.gethostname() if here else "elsewhere"
    write_lease(tmp_path, host=host, pid=os.getpid() if alive else dead_pid(), seconds_ago=seconds_ago)
    if held:
        with pytest.raises(ValueError, match=host):
            run(Pipeline().steps, tmp_path)
    else:
        assert len(run(Pipeline().steps, tmp_path)) == 3
        assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []


def test_a_damaged_lease_holds_until_it_is_stale(tmp_path: Path) -> None:
    (tmp_path / LEASE).write_text("{")
    with pytest.raises(ValueError, match="in use"), lease(tmp_path):
        pass
    os.utime(tmp_path / LEASE, (0, 0))
    with lease(tmp_path):
        pass


def test_a_beat_renews_the_lease(tmp_path: Path) -> None:
    with lease(tmp_path) as held:
        os.utime(tmp_path / LEASE, (0, 0))
        held.beat()
        assert (tmp_path / LEASE).stat().st_mtime > 0


def test_a_driver_that_lost_its_lease_stops_and_leaves_the_other_alone(tmp_path: Path) -> None:
    def lose(given: dict[str, Path], out: Path) -> dict[str, Any]:
        (tmp_path / LEASE).unlink()
        write_lease(tmp_path, host="elsewhere", pid=1, seconds_ago=0)
        return {}

    step = Step("lost", {}, (), lose)
    with pytest.raises(RuntimeError, match="taken by another driver: process 1 on elsewhere"):
        run([step], tmp_path)
    assert not (step.out(tmp_path) / RECORD).exists()
    assert "elsewhere" in (tmp_path / LEASE).read_text()


def test_progress_logs_rarely_and_always_the_end(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    progress = Progress("extract", 100, "samples", every=10, clock=lambda: now)
    with caplog.at_level(logging.INFO):
        for done in range(1, 101):
            now = done * 0.5
            progress(done, 100)
    assert len(caplog.messages) == 5  # after 10, 20, 30, 40 s, and the end
    assert caplog.messages[0] == "extract: 20/100 samples, 2 samples/s, 40 s left"
    assert caplog.messages[-1] == "extract: 100/100 samples, 2 samples/s"


def test_progress_does_not_count_the_start_of_an_engine(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    progress = Progress("extract", 8, "shards", every=10, clock=lambda: now)
    with caplog.at_level(logging.INFO):
        for done in range(1, 4):
            now = 150.0 + 10 * done
            progress(done, 8)
    assert caplog.messages[0] == "extract: 1/8 shards"
    assert caplog.messages[-1] == "extract: 3/8 shards, 0.1 shards/s, 50 s left"


def test_progress_does_not_count_what_was_done_before(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    progress = Progress("train", 200, "steps", every=10, clock=lambda: now)
    with caplog.at_level(logging.INFO):
        progress(100, 200)
        now = 10.0
        progress(110, 200)
    assert caplog.messages == ["train: 110/200 steps, 1 steps/s, 1 min 30 s left"]
    assert duration(7620) == "2 h 07 min"


def test_provenance_takes_the_commit_from_the_job_and_hides_environment_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GIT_SHA", "abc123")
    found = provenance(["/somewhere/eagle3.py", "train.lr=1", "+engine.env.HF_TOKEN=secret"])
    assert (found["git_sha"], found["git_dirty"]) == ("abc123", None)
    assert found["argv"] == ["eagle3.py", "train.lr=1", "+engine.env.HF_TOKEN=…"]
    assert found["versions"]["ray"] and "/somewhere" not in json.dumps(found)
    assert clean_argv(["x", "engine.env={A:b}", "generate.max_new_tokens=3"])[1:] == [
        "engine.env=…",
        "generate.max_new_tokens=3",
    ]
