"""What a run will need, before anything starts: python -m workflows.plan experiment=kimi_k25 [key=value …]

Prints GPUs, memory, disk and, where rates are given, hours; then refuses what cannot fit (exit code 2). It starts no
Ray and no engine, and reads no weights. `plan.*` and `cluster.gpu_gib` say what hardware there is.
"""

from dataclasses import replace
from pathlib import Path

from actors.disk import free_bytes
from actors.units import GIB
from conf.schema import EyrieConfig
from workflows import cli, config
from workflows.errors import users_mistake
from workflows.footprint import data
from workflows.plan_tables import data_table, engine_table, gpu_table, hours_table, train_table
from workflows.refusals import hardware_problems, raise_for, refusals
from workflows.verifier_facts import VerifierFacts, verifier_facts


def plan(cfg: EyrieConfig) -> None:
    """Print the plan; ConfigError with everything that cannot fit."""
    cfg = config.on_this_machine(cfg)
    config.validate(cfg, None)
    raise_for(hardware_problems(cfg))
    root = Path(cfg.output_root)
    with users_mistake():
        facts = verifier_facts(cfg.verifier, root)
    config.validate(cfg, facts.verifier)
    disk, size = _disk(cfg, facts)
    cfg = replace(cfg, plan=replace(cfg.plan, disk_gib=size))
    parts = [
        _heading(cfg, facts),
        gpu_table(cfg),
        engine_table(cfg, facts),
        train_table(cfg, facts),
        data_table(cfg, facts, disk),
        hours_table(cfg, data(cfg, facts)),
    ]
    print("\n\n".join(part for part in parts if part), flush=True)
    raise_for(refusals(cfg, facts))


def _disk(cfg: EyrieConfig, facts: VerifierFacts) -> tuple[str, float]:
    """What says how large the disk is, and GiB. A budget is of the shards alone: the rest comes on top."""
    if cfg.plan.disk_gib is not None:
        return "plan.disk_gib", cfg.plan.disk_gib
    if (budget := cfg.extract.disk_budget_gib) is not None:
        return "extract.disk_budget_gib, and the checkpoints", budget + data(cfg, facts).training / GIB
    return "free below output_root now", free_bytes(Path(cfg.output_root)) / GIB


def _heading(cfg: EyrieConfig, facts: VerifierFacts) -> str:
    shape = facts.verifier
    attention = f"MLA of {facts.latent} values" if facts.latent else f"{facts.kv_heads} KV heads of {facts.head_dim}"
    return (
        f"{cfg.name}: {cfg.verifier.source}, {shape.num_layers} layers, hidden {shape.hidden_size}, {attention}, "
        f"{facts.weight_bytes / GIB:,.1f} GiB of weights\nfrom {facts.source}"
    )


def main() -> None:
    cli.launch(plan)


if __name__ == "__main__":
    main()
