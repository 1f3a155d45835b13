"""Why a run cannot fit what it is told of the hardware: one message for each reason (pure).

Each names the key, shows the value and says which value would fit. Only what must fail is refused: activations are not
counted, and where nothing is said of the hardware nothing is refused.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from actors.units import GIB, gib
from actors.verifier import Verifier
from conf.schema import EyrieConfig, Optimizer
from workflows.engine_fit import engine_refusals
from workflows.errors import ConfigError, users_mistake
from workflows.footprint import data, step_needs
from workflows.memory import train_memory
from workflows.verifier_facts import VerifierFacts, folder_facts


def refuse(cfg: EyrieConfig, verifier: Verifier) -> None:
    """ConfigError when the run cannot fit the hardware that `cluster` and `plan` describe."""
    raise_for(hardware_problems(cfg))
    if any(known is not None for known in (cfg.cluster.gpu_gib, cfg.plan.gpus, cfg.plan.disk_gib)):
        with users_mistake():
            facts = folder_facts(Path(verifier.path))
        raise_for(refusals(cfg, facts))


def raise_for(problems: list[str]) -> None:
    """ConfigError with all problems, if there are any."""
    if len(problems) == 1:
        raise ConfigError(problems[0])
    if problems:
        raise ConfigError(f"{len(problems)} problems:\n" + "\n".join(f"  {problem}" for problem in problems))


def hardware_problems(cfg: EyrieConfig) -> list[str]:
    """Values of `plan` and `cluster.gpu_gib` that nothing can be computed from."""
    optional = {
        "cluster.gpu_gib": cfg.cluster.gpu_gib,
        "plan.disk_gib": cfg.plan.disk_gib,
        "plan.extract_tokens_per_s": cfg.plan.extract_tokens_per_s,
        "plan.train_tokens_per_s": cfg.plan.train_tokens_per_s,
        "plan.prompt_tokens": cfg.plan.prompt_tokens,
        "plan.response_tokens": cfg.plan.response_tokens,
    }
    above_0 = {key: value for key, value in optional.items() if value is not None}
    found = [f"{key}: {value} must be greater than 0" for key, value in above_0.items() if not value > 0]
    if cfg.plan.gpus is not None and cfg.plan.gpus < 0:
        found.append(f"plan.gpus: {cfg.plan.gpus} is negative; give 0 or more")
    return found


def refusals(cfg: EyrieConfig, facts: VerifierFacts) -> list[str]:
    """Every reason why the run cannot fit. Disk counts when plan.disk_gib is given."""
    return [*engine_refusals(cfg, facts), *_training(cfg, facts), *_gpus(cfg), *_disk(cfg, facts)]


def _training(cfg: EyrieConfig, facts: VerifierFacts) -> Iterator[str]:
    if not cfg.train.use_gpu or cfg.cluster.gpu_gib is None:
        return
    memory = train_memory(cfg, facts)
    if memory.total <= cfg.cluster.gpu_gib * GIB:
        return
    lighter = train_memory(replace(cfg, train=replace(cfg.train, optimizer=Optimizer.muon)), facts)
    muon = "train.optimizer=muon, " if lighter.total <= cfg.cluster.gpu_gib * GIB else ""
    yield (
        f"cluster.gpu_gib: {cfg.cluster.gpu_gib} GiB, but a training worker holds {gib(memory.total)} GiB before "
        f"activations (draft.intermediate_size {cfg.draft.intermediate_size}, draft.draft_vocab_size "
        f"{cfg.draft.draft_vocab_size}); give {muon}a smaller draft, or train on GPUs of more than that"
    )


def _gpus(cfg: EyrieConfig) -> Iterator[str]:
    have, ranks = cfg.plan.gpus, cfg.engine.num_gpus
    if have is None:
        return
    if ranks > have:
        yield (
            f"engine.tensor_parallel_size: {ranks} GPUs for one engine, but plan.gpus is {have}; give at most {have}, "
            f"or plan.gpus={ranks}"
        )
    for needs in step_needs(cfg):
        wanted = needs.workers * needs.gpus
        if wanted <= have or (needs.step != "train" and ranks > have):
            continue
        key = "train.num_workers" if needs.step == "train" else "extract.workers.max"
        each = "" if needs.step == "train" else f" engines of engine.tensor_parallel_size {ranks}"
        fit = f"give {key}={have // needs.gpus}" if have >= needs.gpus else "set train.use_gpu=false"
        yield (
            f"{key}: {needs.workers}{each} take {wanted} GPUs in step {needs.step}, but plan.gpus is {have}; {fit}, or "
            f"plan.gpus={wanted}"
        )


def _disk(cfg: EyrieConfig, facts: VerifierFacts) -> Iterator[str]:
    found = data(cfg, facts)
    if cfg.plan.disk_gib is None or found.states is None:
        return
    have = int(cfg.plan.disk_gib * GIB)
    if found.states + found.training <= have:
        return
    fit = max(0, (have - found.training) // (found.tokens_each * found.token))
    answer = "generate.max_new_tokens" if cfg.plan.response_tokens is None else "plan.response_tokens"
    value = cfg.generate.max_new_tokens if cfg.plan.response_tokens is None else cfg.plan.response_tokens
    fewer = f"prompts.max_prompts={fit} would fit" if fit else "not one conversation fits"
    yield (
        f"prompts.max_prompts: {found.conversations} conversations of {found.tokens_each} tokens need "
        f"{gib(found.states)} GiB of states and {gib(found.training)} GiB of checkpoints, but the disk has {gib(have)} "
        f"GiB (plan.disk_gib, extract.disk_budget_gib, or what is free); {fewer}, or lower {answer} (now {value}), or "
        "give an output_root on a larger disk"
    )
