"""Step train without Ray: what the workers are told of the kept tokens, and when that makes another step."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from actors.shards import SampleStates, ShardMeta, commit
from actors.train_job import TrainJob
from actors.train_loop import _vocabulary
from actors.verifier import Verifier, read_verifier
from conf.schema import ClusterConfig, EyrieConfig, TrainConfig
from tests.composed import typed
from tests.tiny_draft import TINY_DRAFT
from tests.tiny_run import overrides
from workflows import config
from workflows.cluster import Session
from workflows.eagle3 import build_steps
from workflows.steps.train import train


def fit(job: TrainJob) -> None:
    """Only the first thing that a worker does."""
    found = _vocabulary(job, rank=0)
    result = {"steps": 1, "epochs": 1, "vocab_coverage": found.coverage, "supervised_tokens": found.counted}
    (Path(job.out) / "metrics.json").write_text(json.dumps(result | {"best_epoch": 0, "history": [{"epoch": 0}]}))
    assert found.d2t is not None
    (Path(job.out) / "targets").write_text(json.dumps((found.d2t + torch.arange(len(found.d2t))).tolist()))


def targets(folder: Path, verifier: Verifier, kept: list[str]) -> list[int]:
    """Tokens of a draft vocabulary of four after one conversation that says 40 to 45, the last of them once."""
    (folder / "prompts").mkdir()
    pq.write_table(pa.Table.from_pylist([{"sample": 0, "split": "train"}]), folder / "prompts" / "prompts.parquet")
    ids = np.array([40, 41, 42, 43, 44] * 2 + [45], np.int32)
    sample = SampleStates(0, ids, np.ones(len(ids), bool), np.zeros((len(ids), 1, 2), np.uint16))
    (folder / "extract").mkdir()
    commit(folder / "extract", 0, 1, [sample], ShardMeta("v", (1,), 2, "fake", "c"), {})
    (folder / "out").mkdir()
    draft = replace(TINY_DRAFT, draft_vocab_size=4)
    cfg = TrainConfig(epochs=1, lr=1e-3)
    train(cfg, draft, verifier, kept, None, folder / "prompts", folder / "extract", fit, folder / "out")
    return json.loads((folder / "out" / "targets").read_text())


def test_kept_tokens_reach_the_vocabulary_by_their_ids(tiny_llama: Path, tmp_path: Path) -> None:
    verifier = read_verifier(tiny_llama)
    for name, kept, wanted in (
        ("none", [], [40, 41, 42, 43]),
        ("two", ["<|im_end|>", "<|endoftext|>"], [0, 2, 40, 41]),
    ):
        (tmp_path / name).mkdir()
        assert targets(tmp_path / name, verifier, kept) == wanted


def test_other_kept_tokens_train_again_and_extract_nothing(tiny_llama: Path, tmp_path: Path) -> None:
    cfg = config.on_this_machine(typed(*overrides(tmp_path, tiny_llama)))

    def fingerprints(cfg: EyrieConfig) -> dict[str, str]:
        steps = build_steps(cfg, read_verifier(tiny_llama), Session(ClusterConfig()))
        return {step.name: step.fingerprint for step in steps}

    before = fingerprints(cfg)
    after = fingerprints(replace(cfg, verifier=replace(cfg.verifier, kept_tokens=["<|im_end|>"])))
    assert {name for name in before if before[name] != after[name]} == {"train", "convert", "benchmark"}
