"""`python -m workflows.status`: what it says of a run that goes on, ended, failed, was stopped, or was killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from actors import step_progress
from actors.dead_letters import write_dead_letters
from actors.step_progress import PoolNote, note_pool
from workflows.lease import lease
from workflows.progress import Progress
from workflows.run_state import FILE, newest
from workflows.runner import run
from workflows.status import Status, main, render, status
from workflows.step import Step


def make(folder: Path, out: Path) -> dict[str, Any]:
    """A step that is half done and then waits to be told how to end."""
    with Progress("extract", 8, "shards") as progress:
        progress(0)
        time.sleep(0.05)
        progress._noted = -1e9  # it notes at once
        progress(4)
    note_pool(out, PoolNote(2, 3))
    write_dead_letters(out, 0, [(7, "a/7", "it died")])
    (folder / "half").touch()
    deadline = time.monotonic() + 60
    while not (folder / "end").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    if (said := (folder / "end").read_text()) != "well":
        raise RuntimeError(said)
    return {}


def steps(folder: Path) -> list[Step]:
    first = Step("prompts", {}, (), lambda _, __: {})
    second = Step("extract", {}, (first,), lambda _, out: make(folder, out))
    return [first, second, Step("train", {}, (second,), lambda _, __: {})]


DRIVER = """
import sys
from pathlib import Path
from tests.workflows.test_status import steps
from workflows.runner import run
from workflows.stop import Stop
stop = Stop(1.0)
stop.leave_when_asked()
with stop.one_exit_code():
    run(steps(Path(sys.argv[1])), Path(sys.argv[1]) / "root", name="nest")
"""


@pytest.fixture
def driver(tmp_path: Path) -> Any:
    """A driver in another process, in the middle of its second step."""
    process = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (tmp_path / "half").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    yield process
    if process.poll() is None:
        process.kill()
    process.wait()


def states(found: Status) -> dict[str, str]:
    return {one.step: one.state for one in found.steps}


def test_a_run_that_goes_on(driver: subprocess.Popen, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = status(tmp_path / "root")
    assert found.name == "nest" and found.running and f"process {driver.pid}" in found.driver
    assert states(found) == {"prompts": "done", "extract": "running", "train": "waiting"}
    extract = found.steps[1]
    assert extract.progress.startswith("4/8 shards, ") and extract.rate.endswith("shards/s") and extract.left
    assert (extract.workers, extract.faults) == ("2", "3 shards lost their worker, 1 dead letters")
    assert main([str(tmp_path / "root"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"][1]["state"] == "running"

    (tmp_path / "end").write_text("well")
    assert main([str(tmp_path / "root"), "--watch"]) == 0  # ends with the run
    assert driver.wait(30) == 0
    over = status(tmp_path / "root")
    assert not over.running and set(states(over).values()) == {"done"} and "nobody" in over.driver


def test_a_run_that_failed_says_why(driver: subprocess.Popen, tmp_path: Path) -> None:
    (tmp_path / "end").write_text("the engine did not start")
    assert driver.wait(30) != 0
    found = status(tmp_path / "root")
    assert states(found) == {"prompts": "done", "extract": "failed", "train": "waiting"}
    assert "extract: the engine did not start" in render(found)


@pytest.mark.parametrize(("number", "state"), [(signal.SIGTERM, "stopped"), (signal.SIGKILL, "killed")])
def test_a_run_that_was_ended_from_outside(
    number: signal.Signals, state: str, driver: subprocess.Popen, tmp_path: Path
) -> None:
    os.kill(driver.pid, number)
    driver.wait(30)
    found = status(tmp_path / "root")
    assert not found.running and states(found)["extract"] == state
    assert found.steps[1].progress.startswith("4/8 shards") and not found.steps[1].workers


def test_the_newest_run_is_shown_and_a_damaged_account_is_passed_over(tmp_path: Path) -> None:
    run([Step("prompts", {}, (), lambda _, __: {})], tmp_path, name="first")
    run([Step("prompts", {"k": 1}, (), lambda _, __: {})], tmp_path, name="second")
    assert status(tmp_path).name == "second"
    (tmp_path / "runs" / "broken").mkdir()
    for damaged in ("{", "[]", '{"name": "x", "steps": 3}', '{"name": "x", "lease": "", "steps": [{"step": 1}]}'):
        (tmp_path / "runs" / "broken" / FILE).write_text(damaged)
        found = newest(tmp_path)
        assert found and found.name == "second"


def test_a_step_whose_record_could_not_be_written_has_failed(tmp_path: Path) -> None:
    def takes_the_lease_away(_: dict[str, Path], __: Path) -> dict:
        (tmp_path / ".lease").write_text("another's")
        return {}

    with pytest.raises(RuntimeError, match="taken by another driver"):
        run([Step("prompts", {}, (), takes_the_lease_away)], tmp_path)
    (one,) = status(tmp_path).steps
    assert one.state == "failed" and "taken by another driver" in one.message


def test_the_steps_of_a_driver_that_is_gone_are_not_those_of_the_next(driver: Any, tmp_path: Path) -> None:
    driver.kill()
    driver.wait()
    with lease(tmp_path / "root"):  # the next one holds the root, and has not said anything yet
        found = status(tmp_path / "root")
        assert not found.running and states(found)["extract"] == "killed"
        assert f"process {os.getpid()}" in found.driver and found.driver.endswith("which begins")


@pytest.mark.parametrize("damage", ["not JSON", "[1]", '{"workers": [], "deaths": {}}', '{"done": "x", "total": null}'])
def test_damaged_files_are_no_reason_to_say_nothing(damage: str, driver: Any, tmp_path: Path) -> None:
    driver.kill()
    driver.wait()
    found = status(tmp_path / "root")
    folder = tmp_path / "root" / "extract" / found.steps[1].fingerprint
    for name in (step_progress.FILE, step_progress.POOL):
        (folder / name).write_text(damage)
    next((folder / "dead-letters").iterdir()).write_text("no Parquet")
    (extract,) = (one for one in status(tmp_path / "root").steps if one.step == "extract")
    assert extract.state == "killed" and "dead letters that cannot be read" in extract.faults


def test_where_nothing_ran_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert "no run was ever started in" in capsys.readouterr().err
