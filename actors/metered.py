"""An engine that says now and then how much it has done (pure)."""

import time
from typing import Any

from actors.engine import Completion, Engine, Message, Sampling, SpecCounters

EVERY_S = 20.0


class Metered:
    """Passes everything on to `engine`; prints requests, tokens and rate (Ray forwards what an actor prints)."""

    def __init__(self, engine: Engine, label: str):
        self._engine, self._label = engine, label
        self._began = self._said = time.monotonic()
        self._requests = self._tokens = 0

    async def generate(self, prompt_ids: list[int], sampling: Sampling, *, capture: bool = False) -> Completion:
        completion = await self._engine.generate(prompt_ids, sampling, capture=capture)
        self._requests += 1
        self._tokens += len(completion.prompt_ids) + len(completion.output_ids)
        now = time.monotonic()
        if now - self._said >= EVERY_S:
            rate = self._tokens / (now - self._began)
            print(f"{self._label}: {self._requests} requests, {self._tokens} tokens, {rate:.0f} tok/s", flush=True)
            self._said = now
        return completion

    async def render(self, messages: list[Message]) -> list[int]:
        return await self._engine.render(messages)

    async def decode(self, ids: list[int]) -> str:
        return await self._engine.decode(ids)

    def counters(self) -> SpecCounters:
        return self._engine.counters()

    def describe(self) -> dict[str, Any]:
        return self._engine.describe()

    def close(self) -> None:
        self._engine.close()
