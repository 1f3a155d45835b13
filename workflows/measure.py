"""What the benchmark measures of a running engine: tokens/s of one request after the other, and acceptance.

Nothing here is estimated: a request that failed, an answer that is empty, or counters that do not add up are errors.
"""

import time
from dataclasses import dataclass
from typing import Any

from actors.acceptance import Acceptance, difference
from actors.engine import Sampling
from conf.schema import BenchmarkConfig
from workflows.engines import EngineHandle, checked
from workflows.progress import Progress


@dataclass(frozen=True)
class Speed:
    """One request after the other, greedy."""

    outputs: list[list[int]]
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        return sum(map(len, self.outputs)) / self.seconds


def speed(cfg: BenchmarkConfig, handle: EngineHandle, prompts: list[list[int]], what: str) -> Speed:
    """Answers to the prompts at batch 1, timed after a warm-up."""
    sampling = Sampling(max_new_tokens=cfg.speed_new_tokens)
    checked(handle.generate(prompts[:1], sampling, concurrency=1), prompts[:1], sampling, f"{what}: warm-up")
    begin = time.perf_counter()
    completions = handle.generate(prompts, sampling, concurrency=1)
    seconds = time.perf_counter() - begin
    return Speed([c.output_ids for c in checked(completions, prompts, sampling, f"{what}: speed")], seconds)


def compared(drafted: Speed, plain: Speed) -> dict[str, Any]:
    """A draft's speed beside that of the same engine without one, on the same prompts."""
    prompts = len(plain.outputs)
    equal = sum(a == b for a, b in zip(plain.outputs, drafted.outputs, strict=True))
    return {
        "prompts": prompts,
        "tokens_per_s_plain": plain.tokens_per_s,
        "tokens_per_s_draft": drafted.tokens_per_s,
        "speedup": drafted.tokens_per_s / plain.tokens_per_s,
        # below 1 where bf16 sums of one and of k + 1 tokens break near ties differently: reported, not required
        "greedy_equal": equal / prompts,
    }


def acceptance(cfg: BenchmarkConfig, handle: EngineHandle, name: str, prompts: list[list[int]]) -> dict[str, Any]:
    """What the engine's counters say after it answered the prompts of the set `name`."""
    sampling = Sampling(max_new_tokens=cfg.max_new_tokens)
    before = handle.counters()
    begin = time.perf_counter()
    with Progress(f"benchmark: {name}", len(prompts), "prompts") as progress:
        completions = handle.generate(prompts, sampling, concurrency=cfg.concurrency, progress=progress)
    seconds = time.perf_counter() - begin
    checked(completions, prompts, sampling, f"benchmark: set {name}")
    try:
        found = Acceptance.of(difference(before, handle.counters()))
    except ValueError as error:
        raise RuntimeError(f"benchmark: set {name}: {error}") from error
    if found.draft_tokens > found.drafts * cfg.num_speculative_tokens:
        raise RuntimeError(
            f"benchmark: set {name}: {found} drafts more than {cfg.num_speculative_tokens} tokens at a time"
        )
    return {
        "prompts": len(completions),
        "output_tokens": sum(len(c.output_ids) for c in completions),
        "seconds": seconds,
        "acceptance_length": found.acceptance_length,
        "acceptance_per_position": found.per_position,
        "drafts": found.drafts,
        "accepted": found.accepted,
        "draft_tokens": found.draft_tokens,
    }
