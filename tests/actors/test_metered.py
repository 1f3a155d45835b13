"""An engine's account of itself."""

import asyncio
import time
from typing import Any

import pytest

from actors.engine import Completion, Sampling
from actors.metered import Metered


class Sleeper:
    """Answers after as many hundredths of a second as the prompt's first token says; a negative one fails."""

    async def generate(self, prompt_ids: list[int], sampling: Sampling, **options: Any) -> Completion:
        await asyncio.sleep(abs(prompt_ids[0]) / 100)
        if prompt_ids[0] < 0:
            raise ValueError("negative")
        return Completion(prompt_ids, [1], "stop", None)


async def work(engine: Metered) -> float:
    """Two requests that overlap, a failed one, and idleness: seconds that the engine had work, at least."""
    began = time.monotonic()
    await asyncio.gather(engine.generate([20], Sampling(1)), engine.generate([10], Sampling(1)))
    with pytest.raises(ValueError, match="negative"):
        await engine.generate([-10], Sampling(1))
    worked = time.monotonic() - began
    await asyncio.sleep(worked)
    return worked


def test_the_busy_share_counts_time_with_requests_once_and_idleness_not_at_all() -> None:
    engine = Metered(Sleeper(), "test")  # type: ignore[arg-type]
    assert engine.busy_share() == 0
    asyncio.run(work(engine))
    assert 0.4 < engine.busy_share() < 0.6


def test_work_under_way_counts() -> None:
    async def ask() -> float:
        engine = Metered(Sleeper(), "test")  # type: ignore[arg-type]
        request = asyncio.create_task(engine.generate([30], Sampling(1)))
        await asyncio.sleep(0.1)
        share = engine.busy_share()
        await request
        return share

    assert asyncio.run(ask()) > 0.9
