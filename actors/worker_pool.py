"""An elastic pool of Ray actors over numbered tasks, by hand (no vllm, no torch).

Ray Data 2.60 cannot be told a number of workers while it runs, never lets go of a busy one, and retries a task that
kills its actor for ever. So: feed workers as they finish, feed a dead worker's tasks to others, create and release
workers as `wanted` says, give nothing more to a node that drains. What a task does is done at least once; that it
counts once is the business of whoever commits it.
"""

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError

log = logging.getLogger(__name__)
TICK_S = 1.0
CLOSE_S = 30.0  # an idle worker gets this long to end its engine


@dataclass(eq=False)
class Worker:
    """An actor with `ready() -> node id`, `run(task, …)` and `close()`."""

    actor: Any
    starting: Any  # reference of ready(); None once it is
    node: str = ""
    running: dict[Any, int] = field(default_factory=dict)  # reference -> task
    leaving: bool = False


@dataclass(frozen=True)
class Hooks:
    """What the pool asks of its user. `died` is told of every task that a dead worker held; `alone`: the task must have
    a worker for itself; `call` submits it; `seen` hears how the pool is."""

    create: Callable[[], Any]
    wanted: Callable[[], int]  # workers
    call: Callable[[Any, int], Any]
    died: Callable[[int], None]
    alone: Callable[[int], bool]
    stopping: Callable[[], bool] = lambda: False
    seen: Callable[["State"], None] = lambda _: None


@dataclass(frozen=True)
class State:
    """Of a pool, told now and then: tasks that wait, tasks under way, workers that are ready."""

    queued: int
    running: int
    workers: int


class WorkerPool:
    """`run` yields (task, result) in any order; a task's own exception ends it."""

    def __init__(self, hooks: Hooks, in_flight: int, max_start_deaths: int):
        self._hooks, self._in_flight, self._max_start_deaths = hooks, in_flight, max_start_deaths
        self._workers: list[Worker] = []
        self._closing: list[tuple[Any, Any, float]] = []  # actor, reference of close(), deadline
        self._start_deaths = 0  # in a row

    def run(self, tasks: list[int]) -> Iterator[tuple[int, Any]]:
        queue = deque(tasks)
        try:
            while (queue and not self._hooks.stopping()) or self._running():
                if not self._hooks.stopping():
                    self._resize(len(queue))
                    self._feed(queue)
                self._hooks.seen(self._state(len(queue)))
                yield from self._collect(queue)
        finally:
            for worker in self._workers:
                self._release(worker)
            self._reap(wait=not any(worker.running for worker in self._workers))

    def _state(self, queued: int) -> State:
        running = sum(len(worker.running) for worker in self._workers)
        return State(queued, running, sum(worker.starting is None for worker in self._workers))

    def _running(self) -> bool:
        return any(worker.running for worker in self._workers)

    def _resize(self, queued: int) -> None:
        draining = _draining_nodes()
        for worker in self._workers:
            worker.leaving = worker.leaving or worker.node in draining
        busy = sum(len(worker.running) for worker in self._workers)
        wanted = max(1, min(self._hooks.wanted(), queued + busy))
        staying = [worker for worker in self._workers if not worker.leaving]
        # those that have not started go first, then those with the least to finish
        for worker in sorted(staying, key=lambda w: (w.starting is None, len(w.running)))[: len(staying) - wanted]:
            worker.leaving = True
        for _ in range(wanted - len(staying) if queued else 0):
            actor = self._hooks.create()
            self._workers.append(Worker(actor, actor.ready.remote()))
        for worker in [w for w in self._workers if w.leaving and not w.running]:
            self._workers.remove(worker)
            self._release(worker)
        self._reap(wait=False)

    def _feed(self, queue: deque[int]) -> None:
        ready = [w for w in self._workers if w.starting is None and not w.leaving]
        for worker in sorted(ready, key=lambda w: len(w.running)):
            while len(worker.running) < self._in_flight and (task := self._next(queue, worker)) is not None:
                queue.remove(task)
                worker.running[self._hooks.call(worker.actor, task)] = task

    def _next(self, queue: deque[int], worker: Worker) -> int | None:
        """The first task that may run beside what the worker does already."""
        if any(self._hooks.alone(task) for task in worker.running.values()):
            return None
        return next((task for task in queue if not worker.running or not self._hooks.alone(task)), None)

    def _collect(self, queue: deque[int]) -> Iterator[tuple[int, Any]]:
        references = [r for w in self._workers for r in (*w.running, *([w.starting] if w.starting else []))]
        if not references:
            time.sleep(TICK_S)
            return
        done, _ = ray.wait(references, num_returns=len(references), timeout=0)
        if not done:
            done, _ = ray.wait(references, num_returns=1, timeout=TICK_S)
        for reference in done:
            worker = next((w for w in self._workers if reference is w.starting or reference in w.running), None)
            if worker is None:  # died with another of its tasks
                continue
            try:
                result = ray.get(reference)
            except RayActorError as error:
                self._bury(worker, queue, error)
                continue
            if reference is worker.starting:
                worker.node, worker.starting = result, None
                log.info("%d workers", sum(w.starting is None for w in self._workers))
            else:
                self._start_deaths = 0
                yield worker.running.pop(reference), result

    def _bury(self, worker: Worker, queue: deque[int], error: RayActorError) -> None:
        self._workers.remove(worker)
        if worker.starting is not None and not worker.leaving:
            self._start_deaths += 1
            if self._start_deaths >= self._max_start_deaths:
                raise WorkerDoesNotStart(f"{self._start_deaths} workers in a row died while they started: {error}")
        for task in sorted(worker.running.values(), reverse=True):
            if not getattr(error, "preempted", False):  # a node that was taken away says nothing about its tasks
                self._hooks.died(task)
            queue.appendleft(task)
        log.warning("a worker died; tasks %s run again", sorted(worker.running.values()))

    def _release(self, worker: Worker) -> None:
        """Let a worker end by itself; one that still works is ended."""
        if worker.running or worker.starting is not None:
            ray.kill(worker.actor)
        else:
            self._closing.append((worker.actor, worker.actor.close.remote(), time.monotonic() + CLOSE_S))

    def _reap(self, *, wait: bool) -> None:
        for actor, closing, deadline in list(self._closing):
            left = max(0.0, deadline - time.monotonic()) if wait else 0.0
            done, _ = ray.wait([closing], timeout=left)
            if done or time.monotonic() >= deadline:
                with contextlib.suppress(RayActorError, GetTimeoutError):
                    ray.get(closing, timeout=0)
                ray.kill(actor)
                self._closing = [entry for entry in self._closing if entry[0] is not actor]


class WorkerDoesNotStart(RuntimeError):
    """Workers die before they are ready."""


def _draining_nodes() -> set[str]:
    """Ids of nodes that leave soon: preempted, or told to by `ray drain-node`."""
    return set(ray._private.state.state.get_draining_nodes())
