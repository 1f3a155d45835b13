"""The Ray session of a driver: the cluster it is told of, or a Ray of its own; started when first needed."""

import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from actors.capture import Job
from actors.draft_proposals import Proposals
from actors.draft_trace import DraftTrace
from actors.engine import EngineSpec
from actors.node_labels import Place
from actors.shards import ManifestRow
from actors.train_job import TrainJob
from conf.schema import ClusterConfig, ExtractConfig
from workflows.engines import EngineHandle
from workflows.stop import Stop

if TYPE_CHECKING:
    from actors.engine_pool import EnginePool

MIN_CPUS = 8  # logical: on a laptop two engines start side by side, beside Ray Train's controller


class Session:
    """What steps need of Ray: engines, shard workers, trainers. When everything is done, Ray never starts."""

    def __init__(self, cfg: ClusterConfig):
        self._cfg = cfg
        self.stop = Stop(cfg.stop_grace_s)
        self._ours = False
        self._pool: EnginePool | None = None

    def ensure_ray(self) -> None:
        import ray

        if not ray.is_initialized():
            _connect(self._cfg)
            self.stop.leave_when_asked()
            self._ours = True

    def __call__(self, spec: EngineSpec, name: str) -> AbstractContextManager[EngineHandle]:
        return self._engines()(spec, name)

    def prepare(self, spec: EngineSpec, name: str) -> None:
        self._engines().prepare(spec, name)

    def run_shards(
        self, spec: EngineSpec, job: Job, todo: list[int], cfg: ExtractConfig, name: str
    ) -> Iterator[ManifestRow]:
        """Shards through a pool of workers; SIGTERM lets those in flight be committed, then SystemExit."""
        self._alone()
        from actors.shard_pool import run_pool

        with self.stop.patiently() as stopping:
            yield from run_pool(
                spec,
                job,
                todo,
                cfg,
                name,
                Place(self._cfg.wait_s, self._cfg.labels.extract, "cluster.labels.extract"),
                stopping,
            )

    def fit(self, job: TrainJob) -> None:
        """A draft through Ray Train's workers."""
        self._alone()
        from actors.training import fit

        fit(job, Place(self._cfg.wait_s, self._cfg.labels.train, "cluster.labels.train"))

    def compare_drafts(self, draft: Path, traces: list[DraftTrace], dtype: str) -> Proposals:
        """An engine's draft tokens against the trainer's, in a task of its own: it loads the draft."""
        self.ensure_ray()
        import ray

        from actors.quiet import runtime_env

        labels = self._cfg.labels.engines or None
        task = ray.remote(_compare_drafts).options(
            name="draft gate", num_cpus=1, label_selector=labels, runtime_env=runtime_env()
        )
        return ray.get(task.remote(str(draft), traces, dtype))

    def close(self) -> None:
        if self._pool:
            self._pool.close()
        if self._ours:
            import ray

            ray.shutdown()

    def _alone(self) -> None:
        """Free what idle engines hold, for workers that need the room."""
        self.ensure_ray()
        if self._pool:
            self._pool.close()

    def _engines(self) -> "EnginePool":
        if self._pool is None:
            self.ensure_ray()
            from actors.engine_pool import EnginePool

            self._pool = EnginePool(Place(self._cfg.wait_s, self._cfg.labels.engines, "cluster.labels.engines"))
        return self._pool


def _compare_drafts(draft: str, traces: list[DraftTrace], dtype: str) -> Proposals:
    """Imports the trainer's model where it runs: a driver would pay for it too."""
    from actors.draft_parity import compare

    return compare(draft, traces, dtype)


@contextmanager
def session(cfg: ClusterConfig) -> Iterator[Session]:
    """A session for the length of the block; a cluster that we joined is left as it was."""
    opened = Session(cfg)
    try:
        with opened.stop.one_exit_code():
            yield opened
    finally:
        opened.close()


def _connect(cfg: ClusterConfig) -> None:
    address = cfg.address or os.environ.get("RAY_ADDRESS")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not address:
        # a Ray of our own is reachable from this machine only; Ray 2.60 would write a token to the home folder
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    import ray

    if address:
        ray.init(address=address, log_to_driver=True, logging_level=logging.WARNING)
        return
    cpus = cfg.num_cpus or max(MIN_CPUS, os.cpu_count() or 1)
    # "local": without it Ray would join whatever cluster runs on this machine
    ray.init(address="local", num_cpus=cpus, include_dashboard=False, log_to_driver=True, logging_level=logging.WARNING)
