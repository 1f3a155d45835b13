"""Stands in for actors/engine_pool.py in tests of steps: a FakeEngine in this process, behind the same calls."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from actors.draft_trace import DraftTrace
from actors.engine import Completion, EngineSpec, Message, Sampling, SpecCounters
from actors.fake_engine import FakeEngine


class LocalHandle:
    """Blocking calls to a FakeEngine."""

    def __init__(self, spec: EngineSpec):
        self.spec = spec
        self.engine = FakeEngine(spec)

    def render(self, conversations: list[list[Message]]) -> list[list[int]]:
        async def all_of_them() -> list[list[int]]:
            return await asyncio.gather(*(self.engine.render(c) for c in conversations))

        return asyncio.run(all_of_them())

    def generate(
        self,
        prompts: list[list[int]],
        sampling: Sampling,
        *,
        concurrency: int | None = None,
        capture: bool = False,
        progress: Any = None,
    ) -> list[Completion]:
        async def all_of_them() -> list[Completion]:
            slots = asyncio.Semaphore(concurrency or len(prompts))

            async def one(prompt: list[int]) -> Completion:
                async with slots:
                    return await self.engine.generate(prompt, sampling, capture=capture)

            return await asyncio.gather(*map(one, prompts))

        return asyncio.run(all_of_them())

    def trace(self, prompts: list[list[int]], sampling: Sampling) -> list[tuple[Completion, DraftTrace | None]]:
        async def all_of_them() -> list[tuple[Completion, DraftTrace | None]]:
            return [await self.engine.trace(prompt, sampling) for prompt in prompts]

        return asyncio.run(all_of_them())

    def counters(self) -> SpecCounters:
        return self.engine.counters()

    def describe(self) -> dict[str, Any]:
        return self.engine.describe()


class LocalEngines:
    """Engines for steps; `started` and `prepared` list (name, spec) in order; `handle` is the class given out."""

    def __init__(self, handle: type[LocalHandle] = LocalHandle):
        self._handle = handle
        self.started: list[tuple[str, EngineSpec]] = []
        self.prepared: list[tuple[str, EngineSpec]] = []

    def prepare(self, spec: EngineSpec, name: str) -> None:
        """Nothing to gain in one process."""
        self.prepared.append((name, spec))

    @contextmanager
    def __call__(self, spec: EngineSpec, name: str) -> Iterator[LocalHandle]:
        self.started.append((name, spec))
        handle = self._handle(spec)
        yield handle
        handle.engine.close()
