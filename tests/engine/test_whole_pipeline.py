"""The whole DAG with the real vLLM on a tiny random Llama: the command that a user types, with small numbers."""

import json
import logging
import urllib.request
from pathlib import Path

import pytest
import ray

from tests.composed import typed
from workflows.eagle3 import run_workflow

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

OVERRIDES = [
    "experiment=smoke",
    "draft.aux_layers=[1,2,3]",
    "draft.num_attention_heads=2",
    "draft.num_key_value_heads=1",
    "draft.head_dim=64",
    "draft.intermediate_size=256",
    "draft.draft_vocab_size=256",
    "draft.rope_theta=10000",
    "draft.max_position_embeddings=1024",
    "engine.kv_cache_gib=0.5",
    "engine.dtype=float32",  # whatever this CPU can: all draft tokens must be equal below
    "train.precision=float32",
    "prompts.max_prompts=16",
    "train.max_sample_tokens=256",
    "train.batch_tokens=512",
]


def exported() -> set[str]:
    """Names of the metrics on Ray's endpoint that have come to more than nothing."""
    (node,) = ray.nodes()
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    lines = urllib.request.urlopen(url, timeout=10).read().decode().splitlines()
    told = [line for line in lines if not line.startswith("#")]
    return {line.split("{")[0] for line in told if float(line.rsplit(" ", 1)[1]) > 0}


def run(root: Path, verifier: Path, *more: str) -> dict:
    run_workflow(typed(*OVERRIDES, f"output_root={root}", f"verifier.source={verifier}", *more))
    (report,) = (root / "runs").glob("*/report.json")
    return json.loads(report.read_text())


def test_from_prompts_to_a_measured_acceptance_length(
    local_ray: None, tiny_llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture
) -> None:
    report = run(tmp_path, tiny_llama)
    balance = report["prompts"]
    assert balance["in"] == balance["used"] + sum(balance["dropped"].values()) and balance["used"] == 16
    gate = report["steps"]["convert"]["accounting"]["gate"]
    assert gate["drafts"] > 0 and gate["output_tokens"] == 2 * 24  # both formats were loaded, and agreed
    # the engine computes in float32: its draft reads the states that were trained on, proposes what the trainer does
    for found in gate["draft"].values():
        assert found["states"] < 2**-6 and found["proposals"] >= gate["drafts"] and found["equal"] == found["proposals"]
    held = report["benchmark"]["held_out"]
    print(f"draft gate {gate['draft']}, held out {held}")
    assert held["measured"]["acceptance_length"] == pytest.approx(held["predicted"]["acceptance_length"], abs=0.02)
    assert report["gate"]["shards"] == report["gate"]["of_shards"] == 2 and report["gate"]["largest_of_bound"] < 1
    assert len(report["gate"]["shown"]) >= 5
    for found in report["benchmark"]["sets"].values():
        assert found["prompts"] == 4 and found["drafts"] > 0
        assert found["acceptance_length"] == pytest.approx(1 + found["accepted"] / found["drafts"])
    assert report["benchmark"]["speed"]["tokens_per_s_draft"] > 0
    assert "vllm serve" in capsys.readouterr().out
    assert {"ray_vllm_generation_tokens_total", "ray_vllm_spec_decode_num_drafts_total"} <= exported()  # vLLM's own

    with caplog.at_level(logging.INFO):
        again = run(tmp_path, tiny_llama)
    assert sum("skipped" in line for line in caplog.messages) == 5
    assert again == report
