"""Train an EAGLE-3 draft: python -m workflows.eagle3 experiment=smollm2_cpu [key=value …]

    prompts ──> generate ──> extract ──> train ──> convert ──> benchmark
         └────────(fused: one pass)──┘

Each step leaves <output_root>/<step>/<fingerprint>/ with a record written last. The same command again resumes; a
changed key runs only the steps that read it, and those after them.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from actors.verifier import Verifier
from conf.schema import ExtractMode, EyrieConfig, PromptsConfig, SourceConfig, SourceKind
from workflows import cli, config, report, runner
from workflows.cluster import Session, session
from workflows.errors import ConfigError
from workflows.prompt_sources import source_identity
from workflows.step import Step
from workflows.steps.benchmark import benchmark
from workflows.steps.convert import convert
from workflows.steps.extract import extract, generate
from workflows.steps.prompts import prompts
from workflows.steps.train import train
from workflows.verifier_source import resolve_verifier

log = logging.getLogger(__name__)


def build_steps(cfg: EyrieConfig, verifier: Verifier, ray: Session) -> list[Step]:
    """The DAG. `config` holds what a step's result depends on, and nothing else."""
    trust = cfg.verifier.trust_remote_code
    model = {"verifier": verifier.fingerprint}
    dtype = {"engine.kind": cfg.engine.kind, "engine.dtype": cfg.engine.dtype}
    tokens = {"prompts.max_turns": cfg.prompts.max_turns}

    p = Step(
        "prompts",
        {"prompts": _without_paths(cfg.prompts), "sources": _sources(cfg)},
        (),
        lambda _, out: _prompts(cfg, verifier, out),
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
        {"train": cfg.train, "draft": cfg.draft},
        (p, e),
        lambda ins, out: train(cfg.train, cfg.draft, verifier, ins["prompts"], ins["extract"], ray.fit, out),
        inputs=model,
    )
    k = cfg.benchmark.num_speculative_tokens
    c = Step(
        "convert",
        {"convert": cfg.convert, "draft": cfg.draft, "num_speculative_tokens": k, **dtype},
        (p, t),
        lambda ins, out: convert(
            cfg.convert, cfg.draft, cfg.engine, verifier, ins["train"], ins["prompts"], k, trust, ray, out
        ),
        inputs=model,
    )
    b = Step(
        "benchmark",
        {"benchmark": cfg.benchmark, **dtype},
        (p, c),
        lambda ins, out: benchmark(
            cfg.benchmark, cfg.engine, verifier, trust, ins["convert"], ins["prompts"], ray, out
        ),
        inputs=model,
    )
    return [p, e, t, c, b] if fused else [p, g, e, t, c, b]


def run_workflow(cfg: EyrieConfig) -> None:
    """Check, run what is not done, report."""
    cfg = config.on_this_machine(cfg)
    config.validate(cfg, None)
    root = Path(cfg.output_root)
    runner.check_root(root)
    with _users_mistake():
        verifier = resolve_verifier(cfg.verifier, root)
    config.validate(cfg, verifier)
    with session(cfg.cluster) as ray:
        steps = build_steps(cfg, verifier, ray)
        records = runner.run(steps, root, dry_run=cfg.dry_run)
    if cfg.dry_run:
        return
    result = report.build_report(cfg, records, verifier)
    page = report.write_report(root / "runs" / f"{cfg.name}-{steps[-1].short}", result)
    report.print_table(result)
    print(f"\nreport: {page}")


def _prompts(cfg: EyrieConfig, verifier: Verifier, out: Path) -> dict[str, Any]:
    with _users_mistake():
        return prompts(cfg.prompts, verifier, cfg.verifier.trust_remote_code, out)


def _without_paths(cfg: PromptsConfig) -> PromptsConfig:
    """Where a file lies is not identity; `_sources` has what is in it."""

    def moved(sets: dict[str, SourceConfig]) -> dict[str, SourceConfig]:
        return {n: replace(s, path="") if s.kind is SourceKind.file else s for n, s in sets.items()}

    return replace(cfg, sources=moved(cfg.sources), evals=moved(cfg.evals))


def _sources(cfg: EyrieConfig) -> dict[str, dict[str, str]]:
    """Contents of the prompt sources, so that a changed file is a changed input. Names are unique: see checks.py."""
    groups = {"sources": cfg.prompts.sources, "evals": cfg.prompts.evals}
    with _users_mistake():
        return {
            name: source_identity(f"prompts.{group}.{name}", source)
            for group, sets in groups.items()
            for name, source in sets.items()
        }


@contextmanager
def _users_mistake() -> Iterator[None]:
    """A ValueError from reading what the user gave is a message for the user, without a traceback."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(str(error)) from error


def main() -> None:
    cli.launch(run_workflow)


if __name__ == "__main__":
    main()
