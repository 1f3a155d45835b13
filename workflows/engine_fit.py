"""Does an engine fit its GPUs (or its host): weights, and the caches of one sequence of max_model_len (pure).

vLLM refuses to start with less. What it holds besides, activations and CUDA graphs, is not counted here, so an engine
that is let through can still be too large.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from actors.units import GIB, gib
from conf.schema import EyrieConfig
from workflows.memory import EngineMemory, engine_memory
from workflows.verifier_facts import VerifierFacts

MAX_RANKS = 16  # GPUs of one node: an engine does not span two
MAX_UTILIZATION = 0.95  # more leaves nothing for what vLLM does not count


def engine_refusals(cfg: EyrieConfig, facts: VerifierFacts) -> Iterator[str]:
    """One message for all engines that do not fit."""
    engine, gpu, failing = cfg.engine, cfg.cluster.gpu_gib, _failing(cfg, facts)
    if not failing:
        return
    weights = max(one.weights + one.draft_weights for one in failing)
    sequence = max(one.per_token for one in failing) * engine.max_model_len
    caches = (
        f"one sequence of engine.max_model_len {engine.max_model_len} takes {gib(sequence)} GiB of caches "
        f"({', '.join(one.step for one in failing)})"
    )
    if engine.kv_cache_gib is None:
        usable = (gpu or 0) * engine.gpu_memory_utilization
        problem = (
            f"engine.tensor_parallel_size: each of {engine.tensor_parallel_size} ranks holds {gib(weights)} GiB of "
            f"weights, {caches}, and cluster.gpu_gib {gpu} x engine.gpu_memory_utilization "
            f"{engine.gpu_memory_utilization} is {usable:,.2f}"
        )
    elif engine.kv_cache_gib * GIB < sequence:
        problem = f"engine.kv_cache_gib: {engine.kv_cache_gib}, but {caches}"
    else:
        held = f"{engine.kv_cache_gib} and {gib(weights)} GiB of weights"
        problem = f"engine.kv_cache_gib: {held} exceed cluster.gpu_gib {gpu}"
    yield f"{problem}; {_ways(cfg, facts)}"


def _failing(cfg: EyrieConfig, facts: VerifierFacts) -> list[EngineMemory]:
    """The engines that do not fit."""
    gpu = cfg.cluster.gpu_gib if cfg.engine.num_gpus else None

    def fits(one: EngineMemory) -> bool:
        if one.room is None:
            return True
        whole = gpu is None or one.weights + one.draft_weights + one.room <= gpu * GIB
        return whole and one.room >= one.per_token * cfg.engine.max_model_len

    return [one for one in engine_memory(cfg, facts) if not fits(one)]


def _ways(cfg: EyrieConfig, facts: VerifierFacts) -> str:
    """The values, one key changed at a time, with which every engine would fit."""
    engine, gpu, engines = cfg.engine, cfg.cluster.gpu_gib, engine_memory(cfg, facts)
    sequence = max(one.per_token for one in engines) * engine.max_model_len
    weights = max(one.weights + one.draft_weights for one in engines)
    needed = max(one.weights + one.draft_weights + one.per_token * engine.max_model_len for one in engines)
    heads = facts.verifier.num_attention_heads
    ranks = [n for n in range(engine.tensor_parallel_size + 1, MAX_RANKS + 1) if heads % n == 0]
    tokens = min(one.tokens or 0 for one in engines)
    cache = _up(sequence / GIB)
    if gpu and engine.num_gpus and engine.kv_cache_gib is not None and engine.kv_cache_gib > cache:
        cache = math.floor((gpu - weights / GIB) * 100) / 100  # enough, but more than there is
    values: dict[str, list[Any]] = {
        "kv_cache_gib": [cache] if engine.kv_cache_gib is not None else [],
        "tensor_parallel_size": ranks if engine.num_gpus else [],
        "gpu_memory_utilization": [used] if gpu and (used := _up(needed / GIB / gpu)) <= MAX_UTILIZATION else [],
        "max_model_len": [tokens] if tokens else [],
    }
    found = []
    for key, tried in values.items():
        changes: list[dict[str, Any]] = [{key: value} for value in tried]
        fit = (change for change in changes if not _failing(replace(cfg, engine=replace(engine, **change)), facts))
        if change := next(fit, None):
            found.append(f"engine.{key}={change[key]}{_besides(cfg, key, change[key])}")
    if not found:
        return f"no engine.tensor_parallel_size up to {MAX_RANKS} fits: use larger GPUs, or a smaller verifier"
    return "give " + " or ".join(found)


def _besides(cfg: EyrieConfig, key: str, value: Any) -> str:
    """What else must change with it."""
    shortest = cfg.prompts.max_prompt_tokens + cfg.generate.max_new_tokens * cfg.prompts.max_turns + 2
    if key == "max_model_len" and value < shortest:
        return " (with a lower prompts.max_prompt_tokens or generate.max_new_tokens)"
    if key == "tensor_parallel_size" and cfg.plan.gpus is not None and value > cfg.plan.gpus:
        return f" (more than plan.gpus {cfg.plan.gpus})"
    return ""


def _up(value: float) -> float:
    """To two decimals, never down."""
    return math.ceil(value * 100) / 100
