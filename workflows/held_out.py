"""Held-out conversations, asked of the engine with the draft, against what the trainer's forward predicts on them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.engine import Message, Sampling
from actors.held_out_file import HELD_OUT, LONGEST, answers_from_json
from actors.speculation import Answer, accepted_steps, judged_steps
from conf.schema import BenchmarkConfig, GenerateConfig
from workflows.acceptance_parity import parity, refusal
from workflows.conversation import first_turn
from workflows.engines import EngineHandle, checked
from workflows.progress import Progress
from workflows.prompt_table import read_prompts


@dataclass(frozen=True)
class HeldOut:
    """What is predicted, and how the answers were drawn that it is predicted on."""

    predicted: dict[int, Answer]
    conversations: list[list[Message]]  # first turns, in the order of `predicted`
    sampling: Sampling
    max_sample_tokens: int  # training has cut conversations there


def held_out(
    cfg: BenchmarkConfig, generate: GenerateConfig, max_sample_tokens: int, train_out: Path, prompts_out: Path
) -> HeldOut | str:
    """The first of them; or why there is nothing to compare."""
    if not cfg.held_out_prompts:
        return "benchmark.held_out_prompts is 0"
    if cfg.num_speculative_tokens > LONGEST:
        return f"training predicts at most {LONGEST} draft tokens, and benchmark.num_speculative_tokens is larger"
    predicted = answers_from_json(json.loads((train_out / HELD_OUT).read_text()))
    if not predicted:
        return "no conversation was held out (prompts.val_fraction)"
    chosen = dict(list(predicted.items())[: cfg.held_out_prompts])
    messages = {row.sample: row.messages for row in read_prompts(prompts_out / "prompts.parquet")}
    sampling = Sampling(generate.max_new_tokens, generate.temperature, generate.top_p, generate.seed)
    return HeldOut(chosen, [first_turn(messages[sample]) for sample in chosen], sampling, max_sample_tokens)


def compare(cfg: BenchmarkConfig, handle: EngineHandle, asked: HeldOut) -> dict[str, Any]:
    """Both acceptances; RuntimeError when they part by more than chance."""
    what, k = "benchmark: held-out conversations", cfg.num_speculative_tokens
    prompts = handle.render(asked.conversations)
    with Progress(what, len(prompts), "prompts") as progress:
        completions = handle.generate(prompts, asked.sampling, concurrency=cfg.concurrency, progress=progress)
    measured: dict[int, list[int]] = {}
    for sample, done in zip(asked.predicted, checked(completions, prompts, asked.sampling, what), strict=True):
        if done.accepted is None:
            return {"skipped": "the engine computes no draft"}
        # the last token of an answer has no state, and is no part of what training knows
        known = min(len(done.output_ids) - 1, asked.max_sample_tokens - len(done.prompt_ids))
        measured[sample] = judged_steps(done.accepted, known, k)
    predicted = {sample: accepted_steps(answer, k) for sample, answer in asked.predicted.items()}
    try:
        found = parity(predicted, measured, k)
    except ValueError as error:
        return {"skipped": str(error)}
    if not found.holds:
        raise RuntimeError(f"benchmark: {refusal(found)}")
    return found.as_json()
