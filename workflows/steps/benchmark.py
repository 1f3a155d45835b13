"""Step `benchmark`: acceptance of the draft on each evaluation set, and tokens/s with it and without, in the engine.

Nothing here is estimated: a request that failed, an answer that is empty, or counters that do not add up end the step.
"""

import json
import time
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from actors.acceptance import Acceptance, difference
from actors.commit import replace_atomically
from actors.engine import DraftSpec, EngineSpec, Message, Sampling
from actors.verifier import Verifier
from conf.schema import BenchmarkConfig, EngineConfig
from workflows.conversation import first_turn
from workflows.engines import EngineHandle, Engines, checked
from workflows.progress import Progress
from workflows.prompt_table import read_prompts

RESULT = "benchmark.json"


@dataclass(frozen=True)
class Speed:
    """One request after the other, greedy."""

    outputs: list[list[int]]
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        return sum(map(len, self.outputs)) / self.seconds


def benchmark(
    cfg: BenchmarkConfig,
    engine: EngineConfig,
    verifier: Verifier,
    trust_remote_code: bool,
    convert_out: Path,
    prompts_out: Path,
    engines: Engines,
    out: Path,
) -> dict[str, Any]:
    """Measure the flat draft of the convert step; writes out/benchmark.json and returns the same."""
    if cfg.speed_prompts < 1:
        raise ValueError("benchmark.speed_prompts must be at least 1: the speedup is measured on these prompts.")
    conversations = _read_sets(prompts_out / "eval", cfg.prompts_per_set)
    plain_spec = EngineSpec(verifier.path, engine, trust_remote_code)
    draft = DraftSpec(str(convert_out / "flat"), cfg.num_speculative_tokens)
    draft_spec = EngineSpec(verifier.path, engine, trust_remote_code, draft=draft)

    with engines(draft_spec, name="draft") as handle:
        sets = {name: handle.render(found) for name, found in conversations.items()}
        _check_context(cfg, engine, sets)
        speed_prompts = _interleaved(list(sets.values()))[: cfg.speed_prompts]
        drafted = _speed(cfg, handle, speed_prompts, "benchmark: with draft")
        engines.prepare(plain_spec, name="plain")  # its start may slow what follows, but acceptance has no clock
        measured = {name: _acceptance(cfg, handle, name, found) for name, found in sets.items()}
    with engines(plain_spec, name="plain") as handle:
        plain = _speed(cfg, handle, speed_prompts, "benchmark: without draft")

    equal = sum(a == b for a, b in zip(plain.outputs, drafted.outputs, strict=True))
    result = {
        "sets": measured,
        "speed": {
            "prompts": len(speed_prompts),
            "tokens_per_s_plain": plain.tokens_per_s,
            "tokens_per_s_draft": drafted.tokens_per_s,
            "speedup": drafted.tokens_per_s / plain.tokens_per_s,
            # below 1 where bf16 sums of one and of k + 1 tokens break near ties differently: reported, not required
            "greedy_equal": equal / len(speed_prompts),
        },
        "num_speculative_tokens": cfg.num_speculative_tokens,
    }
    replace_atomically(out / RESULT, json.dumps(result, indent=2) + "\n")
    return result


def _read_sets(folder: Path, prompts_per_set: int) -> dict[str, list[list[Message]]]:
    """Set name -> first user turns."""
    sets = {file.stem: read_prompts(file)[:prompts_per_set] for file in sorted(folder.glob("*.parquet"))}
    empty = sorted(name for name, rows in sets.items() if not rows)
    if not sets or empty:
        raise ValueError(
            f"prompts.evals: {f'no prompts in {empty}' if sets else 'no evaluation set'}, so there is nothing to "
            "measure acceptance on. Configure at least one set with prompts."
        )
    return {name: [first_turn(row.messages) for row in rows] for name, rows in sets.items()}


def _check_context(cfg: BenchmarkConfig, engine: EngineConfig, sets: dict[str, list[list[int]]]) -> None:
    """An engine that runs out of context stops drafting before it stops writing, and the numbers would not say so."""
    for name, prompts in sets.items():
        prompt = max(map(len, prompts))
        longest = prompt + max(cfg.max_new_tokens, cfg.speed_new_tokens) + cfg.num_speculative_tokens
        if longest > engine.max_model_len:
            raise ValueError(
                f"engine.max_model_len: set {name} needs {longest} tokens (a prompt of {prompt}, "
                "benchmark.max_new_tokens or speed_new_tokens, and benchmark.num_speculative_tokens), and the engine "
                f"holds {engine.max_model_len}. Raise it, or lower the others."
            )


def _interleaved(sets: list[list[list[int]]]) -> list[list[int]]:
    """The first prompt of every set, then the second, …: a few of them stand for all sets."""
    return [prompt for prompt in chain.from_iterable(zip_longest(*sets)) if prompt is not None]


def _speed(cfg: BenchmarkConfig, handle: EngineHandle, prompts: list[list[int]], what: str) -> Speed:
    sampling = Sampling(max_new_tokens=cfg.speed_new_tokens)
    checked(handle.generate(prompts[:1], sampling, concurrency=1), prompts[:1], sampling, f"{what}: warm-up")
    begin = time.perf_counter()
    completions = handle.generate(prompts, sampling, concurrency=1)
    seconds = time.perf_counter() - begin
    return Speed([c.output_ids for c in checked(completions, prompts, sampling, f"{what}: speed")], seconds)


def _acceptance(cfg: BenchmarkConfig, handle: EngineHandle, name: str, prompts: list[list[int]]) -> dict[str, Any]:
    sampling = Sampling(max_new_tokens=cfg.max_new_tokens)
    before = handle.counters()
    begin = time.perf_counter()
    progress = Progress(f"benchmark: {name}", len(prompts), "prompts")
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
