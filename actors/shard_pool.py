"""Shards through a pool of extraction workers: Ray Data distributes, retries and scales; we list what is to do."""

import json
import logging
from collections.abc import Iterator

import ray
import ray.data
from ray.data import ActorPoolStrategy, DataContext
from ray.exceptions import RayActorError

from actors.capture import Job
from actors.engine import EngineSpec
from actors.extraction_actor import ExtractionActor
from actors.quiet import runtime_env
from actors.room import ENGINE_KEYS, engine_resources, wait_for_node
from actors.shards import ManifestRow
from conf.schema import ExtractConfig

MAX_SHARD_RETRIES = 3  # a shard that takes its engine down this often more will do so again; Ray's own limit is none
MAX_START_DEATHS = 3  # an engine that dies this often in a row while it starts will not start


def run_pool(
    spec: EngineSpec, job: Job, todo: list[int], cfg: ExtractConfig, name: str, wait_s: float = 0
) -> Iterator[ManifestRow]:
    """Commit the shards in `todo`; yields a manifest row as each is done, in any order.

    RuntimeError when no node is large enough for a worker within `wait_s`: Ray Data would wait for ever.
    """
    wait_for_node(engine_resources(spec), name, wait_s, ENGINE_KEYS)
    context = DataContext.get_current()
    context.enable_progress_bars = False  # the step prints its own line
    context.execution_options.verbose_progress = False
    # must exceed model load plus the longest shard, or Ray Data gives up on a pool that works
    context.execution_no_progress_timeout_s = spec.config.start_timeout_s + 3600
    context.max_consecutive_actor_init_deaths = MAX_START_DEATHS
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    dataset = ray.data.from_items([{"shard": shard} for shard in todo], override_num_blocks=len(todo)).map_batches(
        ExtractionActor,
        fn_constructor_kwargs={"spec": spec, "job": job},
        batch_size=1,
        compute=ActorPoolStrategy(
            min_size=min(cfg.workers.min, len(todo)),
            max_size=min(cfg.workers.max, len(todo)),
            max_tasks_in_flight_per_actor=cfg.shards_in_flight,
            max_concurrent_calls_per_actor=cfg.shards_in_flight,
        ),
        num_cpus=spec.config.num_cpus,
        num_gpus=spec.config.num_gpus,
        runtime_env=runtime_env(),
        max_task_retries=MAX_SHARD_RETRIES,
    )
    dataset.set_name(name)
    try:
        for item in dataset.iter_rows():
            yield ManifestRow(**json.loads(item["row"]))
    except RayActorError as error:
        raise RuntimeError(
            f"{name}: a worker died {MAX_SHARD_RETRIES + 1} times over the same shard: {error}. Its last lines are in "
            "the log above; out of memory is the usual cause (engine.kv_cache_gib, engine.max_num_seqs). What is "
            "committed stays: the same command goes on from there."
        ) from error
