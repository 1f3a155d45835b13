"""Train an EAGLE-3 draft: python -m workflows.eagle3 experiment=smollm2_cpu [key=value …]

    prompts ──> generate ──> extract ──> train ──> convert ──> benchmark
         └────────(fused: one pass)──┘

Each step leaves <output_root>/<step>/<fingerprint>/ with a record written last. The same command again resumes; a
changed key runs only the steps that read it, and those after them.
"""

import os
from pathlib import Path

from actors.quiet import RUN
from actors.verifier import Verifier
from conf.schema import ExtractMode, EyrieConfig
from workflows import cli, config, draft_source, refusals, report, runner
from workflows.cluster import Session, session
from workflows.errors import users_mistake
from workflows.held_out import held_out
from workflows.prompt_sources import prompts_identity
from workflows.state_metrics import StateMetrics
from workflows.step import Step
from workflows.steps.benchmark import benchmark
from workflows.steps.convert import convert
from workflows.steps.extract import extract, generate
from workflows.steps.prompts import prompts
from workflows.steps.train import train
from workflows.verifier_rope import with_verifier_rope
from workflows.verifier_source import resolve_verifier


def build_steps(cfg: EyrieConfig, verifier: Verifier, ray: Session) -> list[Step]:
    """The DAG. `config` holds what a step's result depends on, and nothing else."""
    trust = cfg.verifier.trust_remote_code
    model = {"verifier": verifier.fingerprint}
    dtype = {"engine.kind": cfg.engine.kind, "engine.dtype": cfg.engine.dtype}
    tokens = {"prompts.max_turns": cfg.prompts.max_turns}
    start, reference = draft_source.init_from(cfg, verifier), draft_source.reference_draft(cfg, verifier)

    p = Step(
        "prompts",
        prompts_identity(cfg.prompts),
        (),
        lambda _, out: prompts(cfg.prompts, verifier, trust, out),
        inputs=model,
    )
    fused = cfg.extract.mode is ExtractMode.fused
    g = Step(
        "generate",
        {"generate": cfg.generate, "shards": cfg.extract.samples_per_shard, **dtype},
        (p,),
        lambda ins, out: generate(
            cfg.generate, cfg.extract, cfg.engine, verifier, trust, ins["prompts"], ray.run_shards, out
        ),
        inputs=model,
    )
    aux = {"draft.aux_layers": cfg.draft.aux_layers}
    e = Step(
        "extract",
        {"extract": cfg.extract, "generate": cfg.generate, **aux, **dtype, **tokens},
        (p,) if fused else (p, g),
        lambda ins, out: extract(
            cfg.generate,
            cfg.extract,
            cfg.draft,
            cfg.engine,
            verifier,
            trust,
            ins["prompts"],
            ins.get("generate"),
            ray.run_shards,
            out,
        ),
        inputs=model,
    )
    t = Step(
        "train",
        {"train": cfg.train, "draft": cfg.draft, "kept_tokens": cfg.verifier.kept_tokens},
        (p, e),
        lambda ins, out: train(
            cfg.train,
            cfg.draft,
            verifier,
            cfg.verifier.kept_tokens,
            start.folder if start else None,
            ins["prompts"],
            ins["extract"],
            ray.fit,
            out,
        ),
        inputs=model | draft_source.inputs(init_from=start),
    )
    k = cfg.benchmark.num_speculative_tokens
    c = Step(
        "convert",
        {"convert": cfg.convert, "draft": cfg.draft, "num_speculative_tokens": k, **dtype},
        (t,),
        lambda ins, out: convert(
            cfg.convert, cfg.draft, cfg.engine, verifier, ins["train"], k, trust, ray, ray.compare_drafts, out
        ),
        inputs=model,
    )
    b = Step(
        "benchmark",
        {"benchmark": cfg.benchmark, **dtype},
        (p, t, c),
        lambda ins, out: benchmark(
            cfg.benchmark,
            cfg.engine,
            verifier,
            trust,
            ins["convert"],
            reference,
            ins["prompts"],
            held_out(cfg.benchmark, cfg.generate, cfg.train.max_sample_tokens, ins["train"], ins["prompts"]),
            ray,
            out,
        ),
        inputs=model | draft_source.inputs(reference_draft=reference),
    )
    return [p, e, t, c, b] if fused else [p, g, e, t, c, b]


def run_workflow(cfg: EyrieConfig) -> None:
    """Check, run what is not done, report."""
    cfg = config.on_this_machine(cfg)
    config.validate(cfg, None)
    root = Path(cfg.output_root)
    runner.check_root(root)
    with users_mistake():
        verifier = resolve_verifier(cfg.verifier, root)
    config.validate(cfg, verifier)
    refusals.refuse(cfg, verifier)
    cfg = with_verifier_rope(cfg, verifier)
    os.environ[RUN] = cfg.name
    with session(cfg.cluster) as ray:
        with users_mistake():
            steps = build_steps(cfg, verifier, ray)
        if cfg.dry_run:
            runner.print_plan(steps, root)
            return
        records = runner.run(steps, root, name=cfg.name, observe=StateMetrics())
    result = report.build_report(cfg, records, verifier)
    page = report.write_report(runner.run_folder(root, cfg.name, steps[-1]), result)
    report.print_table(result)
    print(f"\nreport: {page}")


def main() -> None:
    cli.launch(run_workflow)


if __name__ == "__main__":
    main()
