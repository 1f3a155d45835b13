"""The extraction worker: a Ray actor that holds an engine, takes shard numbers, commits shards, returns manifest rows.

Hidden states never enter the object store: what leaves is one small row for each shard.
"""

import logging
import os

import ray

from actors.capture import Care, Job, run_shard
from actors.engine import EngineDead, EngineSpec
from actors.hf_forward import HfForward
from actors.metered import Metered, RecentShare
from actors.metrics import Metrics
from actors.shard_gate import ShardGate
from actors.start_engine import start

log = logging.getLogger(__name__)


class ExtractionActor:
    """Several calls run at once (`extract.shards_in_flight`), so that the batch of the engine never drains."""

    def __init__(self, spec: EngineSpec, job: Job, worker: int = 0):
        self._job, self._name = job, f"{'extract' if job.meta else 'generate'}, worker {worker}"
        self._metrics = Metrics("extract" if job.meta else "generate", str(worker))
        self._engine = Metered(start(spec), self._name, self._metrics.completed)
        self._metrics.show("engine_busy_share", RecentShare(self._engine))
        self._gate = None
        if job.meta and (job.gate_samples or job.shown):
            hf = HfForward(spec.verifier, spec.trust_remote_code) if job.gate_hf else None
            self._gate = ShardGate(spec.verifier, spec.config.dtype, job.meta, job.gate_samples, job.shown, hf)

    def __repr__(self) -> str:
        return f"Extraction({self._name})"

    async def ready(self) -> str:
        """Id of the node that it runs on."""
        return ray.get_runtime_context().get_node_id()

    async def run(self, shard: int, singly: bool, lost: list[int]) -> str:
        """Manifest row, as JSON, of a shard that is committed without the samples in `lost`."""
        try:
            row = await run_shard(self._engine, self._job, shard, Care(singly, tuple(lost)), self._gate)
        except EngineDead:
            log.exception("shard %d: the engine died; another worker takes over", shard)
            os._exit(1)  # sys.exit would count as an intended end
        return row.dumps()

    async def busy_share(self) -> float:
        """Of its life, in which its engine had work."""
        return self._engine.busy_share()

    async def close(self) -> None:
        self._engine.close()
