"""An engine that says now and then how much it has done, and how much of the time it had something to do (pure)."""

import time
from typing import Any

from actors.draft_trace import DraftTrace
from actors.engine import Completion, Engine, Message, Sampling, SpecCounters

EVERY_S = 20.0


class Metered:
    """Passes everything on to `engine`; prints requests, tokens and rate (Ray forwards what an actor prints)."""

    def __init__(self, engine: Engine, label: str):
        self._engine, self._label = engine, label
        self._began = self._said = time.monotonic()
        self._requests = self._tokens = self._under_way = 0
        self._busy_s = 0.0  # before `_busy_since`, which counts while a request is under way
        self._busy_since = self._began

    async def generate(
        self, prompt_ids: list[int], sampling: Sampling, *, capture: bool = False, prompt_logprobs: int = 0
    ) -> Completion:
        if not self._under_way:
            self._busy_since = time.monotonic()
        self._under_way += 1
        try:
            completion = await self._engine.generate(
                prompt_ids, sampling, capture=capture, prompt_logprobs=prompt_logprobs
            )
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._busy_s += time.monotonic() - self._busy_since
        self._requests += 1
        self._tokens += len(completion.prompt_ids) + len(completion.output_ids)
        now = time.monotonic()
        if now - self._said >= EVERY_S:
            rate = self._tokens / (now - self._began)
            done = f"{self._requests} requests, {self._tokens} tokens, {rate:.0f} tok/s"
            print(f"{self._label}: {done}, busy {self.busy_share():.0%}", flush=True)
            self._said = now
        return completion

    async def trace(self, prompt_ids: list[int], sampling: Sampling) -> tuple[Completion, DraftTrace | None]:
        return await self._engine.trace(prompt_ids, sampling)

    def busy_share(self) -> float:
        """Of the time since the engine was up: a request at least was under way."""
        now = time.monotonic()
        current = now - self._busy_since if self._under_way else 0.0
        return (self._busy_s + current) / max(1e-9, now - self._began)

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
