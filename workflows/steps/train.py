"""Step `train`: an EAGLE-3 draft from hidden-state shards, by speculators inside Ray Train."""

import json
import logging
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch

from actors.commit import sweep
from actors.train_loop import TrainJob, train_worker
from actors.verifier import Verifier
from actors.vocabulary import build_vocabulary, count_tokens
from conf.schema import DraftConfig, TrainConfig

log = logging.getLogger(__name__)


def train(
    cfg: TrainConfig, draft: DraftConfig, verifier: Verifier, prompts_out: Path, extract_out: Path, out: Path
) -> dict[str, Any]:
    """Leave out/draft (speculators format) and out/metrics.json; returns the accounting."""
    shards = sorted(extract_out.glob("part-*.parquet"))
    if not shards:
        raise ValueError(f"{extract_out} holds no shards; remove its record.json and run again")
    train_samples, val_samples = _split(prompts_out)
    sweep(out)
    counts = count_tokens(shards, train_samples)
    vocabulary = build_vocabulary(counts, draft.draft_vocab_size, verifier.vocab_size)
    torch.save(vars(vocabulary), out / "vocabulary.pt")
    log.info("train: draft vocabulary of %d covers %.2f%% of tokens", draft.draft_vocab_size, 100 * vocabulary.coverage)
    job = TrainJob(
        cfg=cfg,
        draft=draft,
        verifier=verifier,
        shards=tuple(map(str, shards)),
        train_samples=frozenset(train_samples),
        val_samples=frozenset(val_samples),
        vocabulary=str(out / "vocabulary.pt"),
        out=str(out),
    )
    _fit(job)
    metrics = json.loads((out / "metrics.json").read_text())
    tokens = sum(pq.read_metadata(f).num_rows for f in shards)
    last = metrics["history"][-1]
    return {
        "steps": metrics["steps"],
        "epochs": metrics["epochs"],
        "tokens": tokens * metrics["epochs"],
        "supervised_tokens": sum(counts.values()) * metrics["epochs"],
        "vocab_coverage": vocabulary.coverage,
        "val": {k: v for k, v in last.items() if k != "epoch"},
    }


def _split(prompts_out: Path) -> tuple[set[int], set[int]]:
    """Sample numbers of the training and of the validation conversations."""
    table = pq.read_table(prompts_out / "prompts.parquet", columns=["sample", "split"]).to_pylist()
    sides: dict[str, set[int]] = {"train": set(), "val": set()}
    for row in table:
        sides[row["split"]].add(row["sample"])
    return sides["train"], sides["val"]


def _fit(job: TrainJob) -> None:
    """Run the workers; Ray Train restarts them when one dies, and they go on from the newest checkpoint."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    cfg = job.cfg
    resources = {"CPU": cfg.num_cpus_per_worker} | ({"GPU": 1} if cfg.use_gpu else {})
    TorchTrainer(
        train_worker,
        train_loop_config={"job": job},
        torch_config=TorchConfig(backend="nccl" if cfg.use_gpu else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=cfg.num_workers, use_gpu=cfg.use_gpu, resources_per_worker=resources
        ),
        run_config=RunConfig(
            name="ray_train", storage_path=job.out, failure_config=FailureConfig(max_failures=cfg.max_failures)
        ),
    ).fit()
