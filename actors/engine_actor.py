"""One engine in a Ray actor of its own, for the steps that talk to it directly (convert, benchmark)."""

import asyncio
import os
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayActorError

from actors.draft_trace import DraftTrace
from actors.engine import Completion, EngineDead, EngineSpec, Message, Sampling, SpecCounters
from actors.metered import Metered, RecentShare
from actors.metrics import Metrics
from actors.start_engine import start

POLL_S = 2.0


class EngineActor:
    """Holds an engine and answers batches of requests; `repr` is its name in the dashboard and in logs."""

    def __init__(self, spec: EngineSpec, name: str):
        self._name = name
        self._metrics = Metrics(name)
        self._engine = Metered(start(spec), None, self._metrics.completed)
        self._metrics.show("engine_busy_share", RecentShare(self._engine))
        self._done = 0

    def __repr__(self) -> str:
        return f"Engine({self._name})"

    async def ready(self) -> dict[str, Any]:
        return self._engine.describe()

    async def render(self, conversations: list[list[Message]]) -> list[list[int]]:
        return [await self._engine.render(c) for c in conversations]

    async def decode(self, sequences: list[list[int]]) -> list[str]:
        return [await self._engine.decode(ids) for ids in sequences]

    async def generate(
        self, prompts: list[list[int]], sampling: Sampling, concurrency: int, capture: bool
    ) -> list[Completion]:
        self._done = 0
        gate = asyncio.Semaphore(concurrency)

        async def one(prompt: list[int]) -> Completion:
            async with gate:
                completion = await self._engine.generate(prompt, sampling, capture=capture)
            self._done += 1
            return completion

        try:
            return list(await asyncio.gather(*(one(p) for p in prompts)))
        except EngineDead:
            os._exit(1)  # sys.exit would count as an intended end: Ray would not report a crash

    async def trace(self, prompts: list[list[int]], sampling: Sampling) -> list[tuple[Completion, DraftTrace | None]]:
        try:
            return [await self._engine.trace(prompt, sampling) for prompt in prompts]
        except EngineDead:
            os._exit(1)

    async def done(self) -> int:
        """Requests finished of the `generate` call under way."""
        return self._done

    async def counters(self) -> SpecCounters:
        return self._engine.counters()

    async def close(self) -> None:
        self._engine.close()


class EngineHandle:
    """A running engine, seen from a step: calls block, results come in order."""

    def __init__(self, actor: Any, name: str):
        self._actor = actor
        self._name = name

    def render(self, conversations: list[list[Message]]) -> list[list[int]]:
        return self._get(self._actor.render.remote(conversations))

    def decode(self, sequences: list[list[int]]) -> list[str]:
        return self._get(self._actor.decode.remote(sequences))

    def counters(self) -> SpecCounters:
        return self._get(self._actor.counters.remote())

    def describe(self) -> dict[str, Any]:
        return self._get(self._actor.ready.remote())

    def generate(
        self,
        prompts: list[list[int]],
        sampling: Sampling,
        *,
        concurrency: int | None = None,
        capture: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Completion]:
        """Completions in the order of the prompts; `progress(done, total)` is called while they come."""
        result = self._actor.generate.remote(prompts, sampling, concurrency or max(1, len(prompts)), capture)
        while progress and not ray.wait([result], timeout=POLL_S)[0]:
            progress(self._get(self._actor.done.remote()), len(prompts))
        return self._get(result)

    def trace(self, prompts: list[list[int]], sampling: Sampling) -> list[tuple[Completion, DraftTrace | None]]:
        """One prompt after the other, with what the draft did."""
        return self._get(self._actor.trace.remote(prompts, sampling))

    def _get(self, reference: Any) -> Any:
        try:
            return ray.get(reference)
        except RayActorError as error:
            raise RuntimeError(
                f"the engine {self._name} died: {error}. Its last lines are in the log above and on the actor's page "
                "of the Ray dashboard; out of memory is the usual cause (engine.kv_cache_gib, gpu_memory_utilization)."
            ) from error
