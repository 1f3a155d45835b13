"""Step `train`: an EAGLE-3 draft from hidden-state shards, by speculators inside Ray Train."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from actors.commit import sweep
from actors.draft_contents import content_faults
from actors.shard_store import is_uri
from actors.shards import manifest_rows
from actors.train_job import TrainJob
from actors.verifier import Verifier
from conf.schema import DraftConfig, TrainConfig
from workflows.errors import ConfigError

Fit = Callable[[TrainJob], None]


def train(
    cfg: TrainConfig,
    draft: DraftConfig,
    verifier: Verifier,
    kept_tokens: Sequence[str],
    init_from: Path | None,
    prompts_out: Path,
    extract_out: Path,
    fit: Fit,
    out: Path,
) -> dict[str, Any]:
    """Leave out/draft (speculators format) and out/metrics.json; returns the accounting."""
    rows = manifest_rows(extract_out)
    if not rows:
        raise ValueError(f"{extract_out} holds no shards; remove its record.json and run again")
    if init_from and (faults := content_faults(init_from)):
        raise ConfigError(f"train.init_from: {init_from}: {'; '.join(faults)}. Use another draft.")
    train_samples, val_samples = _split(prompts_out)
    sweep(out)
    job = TrainJob(
        cfg=cfg,
        draft=draft,
        verifier=verifier,
        shards=tuple(row.file if is_uri(row.file) else str(extract_out / row.file) for row in rows),
        train_samples=frozenset(train_samples),
        val_samples=frozenset(val_samples),
        out=str(out),
        init_from=str(init_from) if init_from else None,
        kept=tuple((verifier.added_tokens or {})[token] for token in kept_tokens),
    )
    fit(job)
    metrics = json.loads((out / "metrics.json").read_text())
    tokens = sum(row.rows for row in rows)
    best = metrics["history"][metrics["best_epoch"]]
    return {
        "steps": metrics["steps"],
        "epochs": metrics["epochs"],
        "tokens": tokens * metrics["epochs"],
        "supervised_tokens": metrics["supervised_tokens"] * metrics["epochs"],
        "vocab_coverage": metrics["vocab_coverage"],
        "init_from": str(init_from) if init_from else None,
        "best_epoch": metrics["best_epoch"] + 1,
        "val": {k: v for k, v in best.items() if k != "epoch"},
    }


def _split(prompts_out: Path) -> tuple[set[int], set[int]]:
    """Sample numbers of the training and of the validation conversations."""
    table = pq.read_table(prompts_out / "prompts.parquet", columns=["sample", "split"]).to_pylist()
    sides: dict[str, set[int]] = {"train": set(), "val": set()}
    for row in table:
        sides[row["split"]].add(row["sample"])
    return sides["train"], sides["val"]
