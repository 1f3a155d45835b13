"""The whole workflow on a fake engine, with numbers so small that a run is nearly all start-up."""

import json
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from tests.composed import typed
from workflows.eagle3 import run_workflow

BUNDLED = OmegaConf.load(Path(__file__).parents[1] / "conf" / "prompts" / "bundled.yaml")
OVERRIDES = [
    "experiment=smoke",
    "engine=fake",
    "draft.aux_layers=[1,2,3]",
    "draft.num_attention_heads=2",
    "draft.num_key_value_heads=1",
    "draft.head_dim=64",
    "draft.intermediate_size=64",
    "draft.draft_vocab_size=64",
    "draft.rope_theta=10000",
    "draft.max_position_embeddings=1024",
    "prompts.max_prompts=18",
    "generate.max_new_tokens=40",
    "extract.samples_per_shard=4",
    "train.num_cpus_per_worker=1",
    "train.batch_tokens=512",
    "train.bins=2",
    "train.max_sample_tokens=256",
    "train.max_failures=0",
    "convert.gate_prompts=2",
    "benchmark.max_new_tokens=32",
    "cluster.wait_s=1",
]


def write_prompts_file(file: Path, count: int, topic: str) -> Path:
    """JSON lines of short questions, no two alike, for `kind=file`."""
    lines = [json.dumps({"messages": f"{topic} number {i}: what is {i * 7919} plus {i}?"}) for i in range(count)]
    file.write_text("\n".join(lines) + "\n")
    return file


def overrides(folder: Path, verifier: Path, *more: str, prompts: int = 18) -> list[str]:
    """Command line of a run below `folder`, whose prompts lie in files there."""
    mine = write_prompts_file(folder / "mine.jsonl", prompts, "sums")
    asked = write_prompts_file(folder / "asked.jsonl", 4, "riddle")
    return [
        *OVERRIDES,
        f"output_root={folder / 'root'}",
        f"verifier.source={verifier}",
        *(f"~prompts.{group}.{name}" for group in ("sources", "evals") for name in BUNDLED[group]),
        f"++prompts.sources={{mine: {{kind: file, path: {mine}}}}}",
        f"++prompts.evals={{asked: {{kind: file, path: {asked}}}}}",
        "prompts.decontaminate_ngram=0",
        *more,
    ]


def run(folder: Path, verifier: Path, *more: str) -> None:
    """As `python -m workflows.eagle3` with these overrides, in this process."""
    run_workflow(typed(*overrides(folder, verifier, *more)))


def read_report(folder: Path) -> dict[str, Any]:
    """The newest report."""
    files = sorted((folder / "root" / "runs").glob("*/report.json"), key=lambda file: file.stat().st_mtime_ns)
    return json.loads(files[-1].read_text())
