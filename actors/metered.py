"""An engine that says now and then how much it has done, and how much of the time it had something to do (pure)."""

import time
from collections.abc import Callable
from typing import Any

from actors.draft_trace import DraftTrace
from actors.engine import Completion, Engine, Message, Sampling, SpecCounters

EVERY_S = 20.0


class RecentShare:
    """Called now and then, the busy share since the last call."""

    def __init__(self, engine: "Metered"):
        self._engine, self._before = engine, (time.monotonic(), engine.busy_s())

    def __call__(self) -> float:
        (then, busy), self._before = self._before, (time.monotonic(), self._engine.busy_s())
        return (self._before[1] - busy) / max(1e-9, self._before[0] - then)


class Metered:
    """Passes everything on to `engine`; `done` hears of each completion.

    With a label it prints requests, tokens and rate (Ray forwards what an actor prints).
    """

    def __init__(self, engine: Engine, label: str | None, done: Callable[[Completion], None] = lambda _: None):
        self._engine, self._label, self._done = engine, label, done
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
        self._done(completion)
        self._requests += 1
        self._tokens += len(completion.prompt_ids) + len(completion.output_ids)
        now = time.monotonic()
        if self._label and now - self._said >= EVERY_S:
            rate = self._tokens / (now - self._began)
            said = f"{self._requests} requests, {self._tokens} tokens, {rate:.0f} tok/s"
            print(f"{self._label}: {said}, busy {self.busy_share():.0%}", flush=True)
            self._said = now
        return completion

    async def trace(self, prompt_ids: list[int], sampling: Sampling) -> tuple[Completion, DraftTrace | None]:
        return await self._engine.trace(prompt_ids, sampling)

    def busy_share(self) -> float:
        """Of the time since the engine was up: a request at least was under way."""
        return self.busy_s() / max(1e-9, time.monotonic() - self._began)

    def busy_s(self) -> float:
        """Seconds with a request under way."""
        return self._busy_s + (time.monotonic() - self._busy_since if self._under_way else 0.0)

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
