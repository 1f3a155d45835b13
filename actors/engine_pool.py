"""The engines that steps use directly: started when asked for, kept while a next step may want the same one.

Starting an engine takes from half a minute to many. So an engine stays up, idle, when its step is done with it, until
somebody asks for the same spec, or for resources that it holds; and `prepare` starts one ahead when there is room.
One that was prepared and not used yet is the last to go.
"""

import contextlib
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError

from actors.engine import EngineSpec
from actors.engine_actor import EngineActor, EngineHandle
from actors.node_labels import Place
from actors.quiet import runtime_env
from actors.reservation import Reservation
from actors.room import ENGINE_KEYS, engine_resources, said, wait_for_node

log = logging.getLogger(__name__)
ALIVE_S = 30.0  # an idle engine answers within this, or is replaced
PLACE_S = 2.0  # for Ray to find a place that is free, or that an engine left
MAX_IDLE = 1  # engines kept after their work, beside those that were prepared


@dataclass(frozen=True)
class _Entry:
    spec: EngineSpec
    name: str
    actor: Any
    place: Reservation


class EnginePool:
    """Call it for an engine: `with pool(spec, name) as handle`. `close` ends all of them."""

    def __init__(self, where: Place):
        self._where = where
        self._idle: list[_Entry] = []  # used before, oldest first
        self._prepared: list[_Entry] = []  # not used yet

    def prepare(self, spec: EngineSpec, name: str) -> None:
        """Start an engine in the background if the cluster has room for it now; otherwise do nothing."""
        if any(entry.spec == spec for entry in (*self._idle, *self._prepared)):
            return
        place = Reservation(engine_resources(spec), self._where)
        if place.granted(PLACE_S):
            self._prepared.append(_create(spec, name, place))
        else:
            place.release()

    @contextmanager
    def __call__(self, spec: EngineSpec, name: str) -> Iterator[EngineHandle]:
        entry = self._take(spec, name)
        try:
            _await_start(entry)
            yield EngineHandle(entry.actor, name)
        except BaseException:
            _kill(entry)
            raise
        self._idle.append(entry)
        self._evict(MAX_IDLE)

    def close(self) -> None:
        self._idle += self._prepared
        self._prepared = []
        self._evict(0)

    def _take(self, spec: EngineSpec, name: str) -> _Entry:
        for kept in (self._idle, self._prepared):
            for entry in [e for e in kept if e.spec == spec]:
                kept.remove(entry)
                if kept is self._prepared or _alive(entry):
                    return entry
        wanted = engine_resources(spec)
        wait_for_node(wanted, name, self._where, ENGINE_KEYS)
        place = Reservation(wanted, self._where)
        try:
            while (self._idle or self._prepared) and not place.granted(PLACE_S):
                _end((self._idle or self._prepared).pop(0))
            if not place.granted(PLACE_S):
                _wait_for_others(place, f"the engine {name} needs {said(wanted)} on one node", spec)
        except BaseException:
            place.release()
            raise
        return _create(spec, name, place)

    def _evict(self, keep: int) -> None:
        while len(self._idle) > keep:
            _end(self._idle.pop(0))


def _wait_for_others(place: Reservation, need: str, spec: EngineSpec) -> None:
    limit = spec.config.start_timeout_s
    log.warning("%s, and other work holds them; waiting up to %g s (engine.start_timeout_s)", need, limit)
    if not place.granted(limit):
        raise RuntimeError(
            f"{need}, and other work has held them for {limit:g} s (engine.start_timeout_s): end that work, add nodes, "
            "or raise the limit."
        )


def _create(spec: EngineSpec, name: str, place: Reservation) -> _Entry:
    options = {
        "num_cpus": spec.config.num_cpus,
        "num_gpus": spec.config.num_gpus,
        "max_concurrency": 1000,
        "runtime_env": runtime_env(),
        **place.options(),
    }
    actor = ray.remote(EngineActor).options(name=f"eyrie:{name}:{time.time_ns()}", **options).remote(spec, name)
    return _Entry(spec, name, actor, place)


def _await_start(entry: _Entry) -> None:
    limit = entry.spec.config.start_timeout_s
    try:
        ray.get(entry.actor.ready.remote(), timeout=limit)
    except GetTimeoutError:
        raise RuntimeError(
            f"the engine {entry.name} did not start in {limit} s; raise engine.start_timeout_s"
        ) from None
    except RayActorError as error:
        raise RuntimeError(
            f"the engine {entry.name} did not start: {error}. The cause is in its lines above; out of memory and an "
            "argument that vLLM refuses (engine.*, engine.extra) are the usual ones."
        ) from error


def _alive(entry: _Entry) -> bool:
    """Whether an engine that was used before still answers."""
    try:
        ray.get(entry.actor.ready.remote(), timeout=ALIVE_S)
    except (RayActorError, GetTimeoutError):
        _kill(entry)
        return False
    return True


def _end(entry: _Entry) -> None:
    with contextlib.suppress(RayActorError, GetTimeoutError):  # it is dead already, or will be now
        ray.get(entry.actor.close.remote(), timeout=60)
    _kill(entry)


def _kill(entry: _Entry) -> None:
    ray.kill(entry.actor)
    entry.place.release()
