"""Step `benchmark`: acceptance of the draft on each evaluation set, and tokens/s with it and without, in the engine.

`benchmark.reference_draft` is measured in the same way on the same prompts. workflows/measure.py says how.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from actors.commit import replace_atomically
from actors.draft_repair import write_repaired
from actors.engine import DraftSpec, EngineSpec, Message
from actors.verifier import Verifier
from conf.schema import BenchmarkConfig, EngineConfig
from workflows.conversation import first_turn
from workflows.draft_source import PublishedDraft
from workflows.engines import EngineHandle, Engines
from workflows.held_out import HeldOut, compare
from workflows.measure import Speed, acceptance, compared, speed
from workflows.prompt_table import read_prompts

RESULT = "benchmark.json"


@dataclass(frozen=True)
class Questions:
    """Rendered prompts: those of each set, and the few that are timed."""

    sets: dict[str, list[list[int]]]
    timed: list[list[int]]


def benchmark(
    cfg: BenchmarkConfig,
    engine: EngineConfig,
    verifier: Verifier,
    trust_remote_code: bool,
    convert_out: Path,
    reference: PublishedDraft | None,
    prompts_out: Path,
    expected: HeldOut | str,
    engines: Engines,
    out: Path,
) -> dict[str, Any]:
    """Measure the flat draft of the convert step; writes out/benchmark.json and returns the same.

    `expected`: what training predicts on held-out conversations, or why nothing is compared with it.
    """
    if cfg.speed_prompts < 1:
        raise ValueError("benchmark.speed_prompts must be at least 1: the speedup is measured on these prompts.")
    conversations = _read_sets(prompts_out / "eval", cfg.prompts_per_set)

    def spec(draft: Path | None) -> EngineSpec:
        speculate = DraftSpec(str(draft), cfg.num_speculative_tokens) if draft else None
        return EngineSpec(verifier.path, engine, trust_remote_code, draft=speculate)

    specs = {"draft": spec(convert_out / "flat"), "plain": spec(None)}
    if reference:
        write_repaired(reference.folder, verifier, reference.layer_ids, out / "reference")
        specs["reference"] = spec(out / "reference")

    def ahead(name: str) -> Callable[[], None]:
        return lambda: engines.prepare(specs[name], name=name)

    with engines(specs["draft"], name="draft") as handle:
        questions = _render(cfg, engine, handle, conversations)
        following = ahead("reference" if reference else "plain")
        parity = {"skipped": expected} if isinstance(expected, str) else compare(cfg, handle, expected)
        drafted, measured = _measure(cfg, handle, questions, "draft", following)
    if reference:
        with engines(specs["reference"], name="reference") as handle:
            others, rival = _measure(cfg, handle, questions, "reference", ahead("plain"))
    with engines(specs["plain"], name="plain") as handle:
        plain = speed(cfg, handle, questions.timed, "benchmark: without draft")

    result = {
        "sets": measured,
        "speed": compared(drafted, plain),
        "num_speculative_tokens": cfg.num_speculative_tokens,
        "held_out": parity,
    }
    if reference:
        result["reference"] = {"path": str(reference.folder), "sets": rival, "speed": compared(others, plain)}
    replace_atomically(out / RESULT, json.dumps(result, indent=2) + "\n")
    return result


def _measure(
    cfg: BenchmarkConfig, handle: EngineHandle, questions: Questions, name: str, ahead: Callable[[], None]
) -> tuple[Speed, dict[str, Any]]:
    """Speed with a draft, and its acceptance on each set; `ahead` starts the next engine in the background."""
    with_draft = speed(cfg, handle, questions.timed, f"benchmark: with {name}")
    ahead()  # may slow what follows, but acceptance has no clock
    mark = "" if name == "draft" else f" ({name})"
    return with_draft, {one: acceptance(cfg, handle, f"{one}{mark}", asked) for one, asked in questions.sets.items()}


def _render(
    cfg: BenchmarkConfig, engine: EngineConfig, handle: EngineHandle, conversations: dict[str, list[list[Message]]]
) -> Questions:
    sets = {name: handle.render(found) for name, found in conversations.items()}
    _check_context(cfg, engine, sets)
    return Questions(sets, _interleaved(list(sets.values()))[: cfg.speed_prompts])


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
