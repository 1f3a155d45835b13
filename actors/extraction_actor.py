"""The extraction worker of a Ray Data pool: holds an engine, takes shard numbers, commits shards, yields manifest rows.

Hidden states never enter the object store: what leaves is one small row for each shard.
"""

import json
import logging
import os
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

from actors.capture import Job, run_shard
from actors.engine import EngineDead, EngineSpec
from actors.metered import Metered
from actors.start_engine import start

log = logging.getLogger(__name__)


class ExtractionActor:
    """Several calls run at once (`extract.shards_in_flight`), so that the batch of the engine never drains."""

    def __init__(self, spec: EngineSpec, job: Job):
        self._job = job
        self._engine = Metered(start(spec), "extract" if job.meta else "generate")

    def __repr__(self) -> str:
        return f"ExtractionActor({'states' if self._job.meta else 'responses'})"

    async def __call__(self, batch: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        for shard in batch["shard"].tolist():
            try:
                row = await run_shard(self._engine, self._job, shard)
            except EngineDead:
                log.exception("shard %d: the engine died; this worker restarts with a new one", shard)
                # Ray Data restarts a crashed actor and runs its shards again; sys.exit would hang it (ray#62746)
                os._exit(1)
            yield {"row": [json.dumps(asdict(row))]}
