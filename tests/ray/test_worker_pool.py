"""The elastic pool on a real Ray with 4 CPUs: every task once, whatever dies, comes and goes."""

import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray

from actors.worker_pool import Hooks, WorkerDoesNotStart, WorkerPool


class Busy:
    """A worker that writes down what it does; a file `die-<task>` in its folder kills it once, `die-start` always."""

    def __init__(self, folder: Path, seconds: float):
        self._folder, self._seconds = folder, seconds
        if (folder / "die-start").exists():
            os._exit(1)

    async def ready(self) -> str:
        return ray.get_runtime_context().get_node_id()

    async def run(self, task: int) -> int:
        import asyncio

        note = f"{os.getpid()} {task}\n"
        with (self._folder / "log").open("a") as log:
            log.write(f"begin {time.monotonic()} {note}")
        marker = self._folder / f"die-{task}"
        if marker.exists():
            marker.unlink()
            os._exit(1)
        await asyncio.sleep(self._seconds)
        with (self._folder / "log").open("a") as log:
            log.write(f"end {time.monotonic()} {note}")
        return task * task

    async def close(self) -> None:
        (self._folder / f"closed-{os.getpid()}").touch()


def hooks(folder: Path, *, seconds: float = 0.05, **changes: Any) -> Hooks:
    actor = ray.remote(Busy).options(num_cpus=0.5, max_restarts=0, max_concurrency=8)
    given: dict[str, Callable] = {
        "create": lambda: actor.remote(folder, seconds),
        "wanted": lambda: 2,
        "call": lambda worker, task: worker.run.remote(task),
        "died": lambda task: None,
        "alone": lambda task: False,
    }
    return Hooks(**{**given, **changes})


def log(folder: Path) -> list[tuple[str, float, int, int]]:
    """What happened: (begin or end, when, process, task)."""
    lines = [line.split() for line in (folder / "log").read_text().splitlines()]
    return sorted(((kind, float(at), int(pid), int(task)) for kind, at, pid, task in lines), key=lambda line: line[1])


def test_every_task_is_done_once_by_as_many_workers_as_are_wanted(local_ray: None, tmp_path: Path) -> None:
    found = dict(WorkerPool(hooks(tmp_path), 2, 3).run(list(range(20))))
    assert found == {task: task * task for task in range(20)}
    done = Counter(task for kind, _, _, task in log(tmp_path) if kind == "end")
    assert done == Counter(range(20))
    pids = {pid for _, _, pid, _ in log(tmp_path)}
    assert len(pids) == 2 and {int(f.name[7:]) for f in tmp_path.glob("closed-*")} == pids


def test_tasks_of_a_dead_worker_run_elsewhere_and_each_is_told_of(local_ray: None, tmp_path: Path) -> None:
    died: list[int] = []
    for task in (3, 11):
        (tmp_path / f"die-{task}").touch()
    pool = WorkerPool(hooks(tmp_path, died=died.append), 2, 3)
    found = sorted(task for task, _ in pool.run(list(range(20))))
    assert found == list(range(20))
    assert {3, 11} <= set(died) and len(died) <= 4  # and what was in flight beside them


def test_the_number_of_workers_follows_while_it_runs(local_ray: None, tmp_path: Path) -> None:
    wanted, done, at_work = [1], [], []
    pool = WorkerPool(hooks(tmp_path, wanted=lambda: wanted[0]), 1, 3)
    for task, _ in pool.run(list(range(40))):
        done.append(task)
        at_work.append(len([w for w in pool._workers if not w.leaving]))
        if len(done) == 5:
            wanted[0] = 3
        if len(done) == 25:
            wanted[0] = 1
    assert sorted(done) == list(range(40))
    assert max(at_work[:4]) == 1 and max(at_work[5:25]) == 3 and set(at_work[30:]) == {1}
    ends = Counter(task for kind, _, _, task in log(tmp_path) if kind == "end")
    assert ends == Counter(range(40))  # a worker that leaves finishes what it has


def test_a_task_that_must_be_alone_has_a_worker_for_itself(local_ray: None, tmp_path: Path) -> None:
    found = dict(WorkerPool(hooks(tmp_path, seconds=0.2, alone=lambda task: task == 5), 3, 3).run(list(range(10))))
    assert len(found) == 10
    open_: dict[int, set[int]] = {}
    for kind, _, pid, task in log(tmp_path):
        beside = open_.setdefault(pid, set())
        if kind == "begin":
            assert not beside or (task != 5 and 5 not in beside)
            beside.add(task)
        else:
            beside.remove(task)


def test_workers_that_never_start_end_it(local_ray: None, tmp_path: Path) -> None:
    (tmp_path / "die-start").touch()
    with pytest.raises(WorkerDoesNotStart, match="3 workers in a row died while they started"):
        list(WorkerPool(hooks(tmp_path), 1, 3).run([1, 2, 3]))


def test_when_asked_to_stop_it_finishes_what_is_in_flight_and_nothing_else(local_ray: None, tmp_path: Path) -> None:
    done: list[int] = []
    pool = WorkerPool(hooks(tmp_path, seconds=0.2, stopping=lambda: len(done) >= 4), 2, 3)
    for task, _ in pool.run(list(range(40))):
        done.append(task)
    began = {task for kind, _, _, task in log(tmp_path) if kind == "begin"}
    assert set(done) == began and 4 <= len(done) <= 8


def test_a_tasks_own_error_ends_it(local_ray: None, tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        list(WorkerPool(hooks(tmp_path, call=lambda worker, task: worker.run.remote("x")), 1, 3).run([1]))
