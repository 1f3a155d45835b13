"""Shards through a pool of extraction workers: what is fed, what counts as a shard's fault, what the user is told."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError

from actors.capture import Job
from actors.engine import EngineSpec
from actors.extraction_actor import ExtractionActor
from actors.halt import Halt
from actors.metrics import Metrics
from actors.node_labels import ANYWHERE, Place
from actors.pool_size import pool_size, read_size
from actors.quiet import runtime_env
from actors.room import ENGINE_KEYS, engine_resources, wait_for_workers
from actors.shards import ManifestRow
from actors.step_progress import PoolNote, note_pool
from actors.suspects import DEATHS, Suspects
from actors.worker_pool import Hooks, State, WorkerDoesNotStart, WorkerPool
from conf.schema import ExtractConfig

MAX_START_DEATHS = 3  # an engine that dies this often in a row while it starts will not start
MAX_UNEXPLAINED = 2 * DEATHS  # deaths of a shard with no sample of it at its turn


def run_pool(
    spec: EngineSpec,
    job: Job,
    todo: list[int],
    cfg: ExtractConfig,
    name: str,
    place: Place = ANYWHERE,
    stopping: Callable[[], bool] = lambda: False,
) -> Iterator[ManifestRow]:
    """Commit the shards in `todo`; yields a manifest row as each is done, in any order.

    Starts with `cfg.workers.max` workers, of which some may wait for nodes to come; actors/pool_size.py changes that
    while it runs. Ends early, with what is in flight committed, once `stopping`. RuntimeError when the cluster has no
    room for `cfg.workers.min` within `place.wait_s`, or when workers die of something that is no sample's fault.
    """
    least = min(cfg.workers.min, len(todo))
    keys = ENGINE_KEYS if least == 1 else f"extract.workers.min, {ENGINE_KEYS}"
    wait_for_workers(engine_resources(spec), least, name, place, keys)
    out = Path(job.out)
    suspects = Suspects(out)
    suspects.another_chance()
    may_lose = cfg.max_lost_fraction * job.ranges[-1][1]
    metrics, numbers = Metrics(name), count()
    deaths = 0  # of shards under their workers
    state, called = State(len(todo), 0, 0), set[int]()
    metrics.show("queue_depth", lambda: state.queued)
    metrics.show("shards_in_flight", lambda: state.running)
    metrics.show("workers", lambda: state.workers)

    def watch(now: State) -> None:
        nonlocal state
        if now.workers != state.workers:
            note_pool(out, PoolNote(now.workers, deaths))
        state = now

    def died(shard: int) -> None:
        nonlocal deaths
        deaths += 1
        metrics.count("shards_failed")
        note_pool(out, PoolNote(state.workers, deaths))
        known = suspects.died(shard)
        if known.lost and len(lost := suspects.all_lost()) > may_lose:
            raise RuntimeError(
                f"{name}: conversations {lost} took the engine down, alone and more than once; that is more than "
                f"extract.max_lost_fraction {cfg.max_lost_fraction} of all allows. If the engine dies of anything, its "
                "last lines above say why (engine.kv_cache_gib, engine.max_num_seqs); else mend these prompts, or "
                "allow more. What is committed stays: the same command goes on from there."
            )
        if known.deaths - sum(known.samples.values()) >= MAX_UNEXPLAINED:
            raise RuntimeError(
                f"{name}: a worker died {known.deaths} times over shard {shard}, and no sample of it is to blame. Its "
                "last lines are in the log above; out of memory is the usual cause (engine.kv_cache_gib, "
                "engine.max_num_seqs). What is committed stays: the same command goes on from there."
            )

    def call(actor: Any, shard: int) -> Any:
        metrics.count("shards_retried", shard in called)
        called.add(shard)
        known = suspects.of(shard)
        return actor.run.options(name=f"{name}-{shard:05d}").remote(shard, known.suspect, known.lost)

    hooks = Hooks(
        create=lambda: _create(spec, job, cfg, place, next(numbers)),
        wanted=lambda: read_size(out),
        call=call,
        died=died,
        alone=lambda shard: suspects.of(shard).suspect,
        stopping=stopping,
        seen=watch,
    )
    try:
        with metrics, pool_size(out, cfg.workers.max):
            for shard, row in WorkerPool(hooks, cfg.shards_in_flight, MAX_START_DEATHS).run(todo):
                suspects.cleared(shard)
                committed = ManifestRow.loads(row)
                _count(metrics, committed, states=job.meta is not None)
                yield committed
    except Halt as error:  # a worker's, in Ray's wrapping
        raise getattr(error, "cause", error) from None
    except (WorkerDoesNotStart, RayActorError) as error:
        raise RuntimeError(
            f"{name}: the engine did not start: {error}. The cause is in its lines above; out of memory and an "
            "argument that vLLM refuses (engine.*, engine.extra) are the usual ones."
        ) from error


def _count(metrics: Metrics, row: ManifestRow, states: bool) -> None:
    metrics.count("shards_done")
    metrics.count("tokens_captured", row.rows if states else 0)
    metrics.count("bytes_written", row.bytes)
    metrics.count("samples_dropped", sum(row.dropped.values()))
    metrics.count("dead_letters", row.dropped.get("dead_letter", 0))


def _create(spec: EngineSpec, job: Job, cfg: ExtractConfig, place: Place, number: int) -> Any:
    """A worker; the pool replaces one that dies, so Ray need not restart it."""
    return (
        ray.remote(ExtractionActor)
        .options(
            num_cpus=spec.config.num_cpus,
            num_gpus=spec.config.num_gpus,
            label_selector=dict(place.labels) or None,
            max_restarts=0,
            max_concurrency=cfg.shards_in_flight + 2,  # and ready(), close()
            runtime_env=runtime_env(),
        )
        .remote(spec, job, number)
    )
