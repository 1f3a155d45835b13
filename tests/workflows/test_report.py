"""The report: counts add up or it says so, rates are honest, and its serve lines can be pasted into a shell."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.verifier import Verifier
from conf.schema import EyrieConfig
from workflows.artifact import Record
from workflows.report import build_report, print_table, write_report

VERIFIER = Verifier("/models/small one", "0123456789abcdef", 576, 30, 49152, 8192, "LlamaForCausalLM", 9, 1e-5)
DROPPED = {"duplicate": 3, "contaminated": 1, "too_long": 6, "empty": 0, "over_limit": 0}
ACCOUNTS: dict[str, dict[str, Any]] = {
    "prompts": {"read": 100, "used": 90, "train": 80, "val": 10, "dropped": DROPPED, "sources": {}, "evals": {}},
    "extract": {
        "samples": 88, "samples_in": 90, "rows": 20_000, "supervised": 9_000, "bytes": 1 << 30, "shards": 2,
        "dropped": {"too_long": 2}, "output_tokens": 9_000,
    },
    "train": {"steps": 40, "tokens": 80_000, "epochs": 4, "val": {"loss": 1.23456}, "vocab_coverage": 0.987},
    "convert": {"formats": {"speculators": "speculators", "flat": "flat"}, "tensors": 15, "draft_tokens_agree": 4},
    "benchmark": {
        "sets": {
            "mt_bench": {
                "prompts": 40, "output_tokens": 4_000, "acceptance_length": 1.2914,
                "acceptance_per_position": [0.214, 0.047, 0.03], "drafts": 3000, "accepted": 874,
            },
            "human_eval": {
                "prompts": 20, "output_tokens": 2_000, "acceptance_length": 1.5,
                "acceptance_per_position": [0.3, 0.15, 0.05], "drafts": 1000, "accepted": 500,
            },
        },
        "speed": {"tokens_per_s_plain": 31.0, "tokens_per_s_draft": 35.0, "speedup": 1.129},
    },
}  # fmt: skip


def records(**accounts: dict[str, Any]) -> dict[str, Record]:
    origin = {"time": "t", "resumed": False}
    return {
        name: Record(name, f"{index}" * 64, {}, {}, origin, account, 10.0)
        for index, (name, account) in enumerate((ACCOUNTS | accounts).items())
    }


def config(**engine: Any) -> EyrieConfig:
    base = EyrieConfig(name="r1", output_root="/out")
    base.verifier.source = "bundled:smollm2"
    return replace(base, engine=replace(base.engine, **engine))


def printed(capsys: pytest.CaptureFixture[str], **accounts: dict[str, Any]) -> str:
    print_table(build_report(config(), records(**accounts), VERIFIER))
    return capsys.readouterr().out


def test_rates_are_tokens_over_seconds_step_by_step() -> None:
    steps = build_report(config(), records(), VERIFIER)["steps"]
    rates = {name: step["tokens_per_s"] for name, step in steps.items()}
    assert rates == {"prompts": None, "extract": 2000.0, "train": 8000.0, "convert": None, "benchmark": 600.0}
    assert {name: step["samples"] for name, step in steps.items() if step["samples"]} == {
        "prompts": 90,
        "extract": 88,
        "benchmark": 60,
    }


def test_a_resumed_step_has_no_rate(capsys: pytest.CaptureFixture[str]) -> None:
    found = records()
    found["extract"] = replace(found["extract"], provenance={"time": "t", "resumed": True})
    report = build_report(config(), found, VERIFIER)
    assert report["steps"]["extract"]["tokens_per_s"] is None
    print_table(report)
    lines = capsys.readouterr().out.splitlines()
    assert next(line for line in lines if line.startswith("extract ")).endswith("resumed")


def test_prompts_and_samples_are_accounted_for(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys)
    assert "prompts: 100 in = 90 used + 10 dropped (3 duplicate, 1 contaminated, 6 too_long)" in text
    assert "extract: 90 in = 88 used + 2 dropped (2 too_long)" in text
    assert "UNACCOUNTED" not in text


def test_what_is_not_accounted_for_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, extract=ACCOUNTS["extract"] | {"samples": 80})
    assert "extract: 90 in = 80 used + 2 dropped (2 too_long) + 8 UNACCOUNTED FOR" in text


def test_table_shows_acceptance_of_every_set_and_the_speedup(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys)
    line = next(line for line in text.splitlines() if line.startswith("mt_bench"))
    assert line.split() == ["mt_bench", "40", "4,000", "1.291", "0.214", "0.047", "0.030"]
    assert "human_eval" in text and "0.300 0.150 0.050" in text
    assert "31.0 tokens/s without the draft, 35.0 with it: 1.13x" in text
    assert "covers 98.7%" in text and "loss 1.235" in text


def test_a_reference_stands_beside_ours_with_the_difference(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    ours = ACCOUNTS["benchmark"]
    lengths = {"mt_bench": 1.5, "human_eval": 1.25}
    sets = {name: one | {"acceptance_length": lengths[name]} for name, one in ours["sets"].items()}
    speed = {"tokens_per_s_plain": 31.0, "tokens_per_s_draft": 40.25, "speedup": 1.298}
    reference = {"path": "/drafts/theirs", "sets": sets, "speed": speed}
    text = printed(capsys, benchmark=ours | {"reference": reference})
    lines = [line.split() for line in text.splitlines()]
    order = [" ".join(line[:2]) for line in lines if line and line[0] in lengths]
    assert order == ["mt_bench 40", "mt_bench (reference)", "human_eval 20", "human_eval (reference)"]
    assert ["mt_bench", "(reference)", "40", "4,000", "1.500", "0.214", "0.047", "0.030"] in lines
    assert "the reference /drafts/theirs: 40.2 tokens/s at batch 1, 1.30x" in text
    assert "35.0 with it: 1.13x" in text
    assert "acceptance length, ours less the reference's: mt_bench -0.209, human_eval +0.250" in text
    report = build_report(config(), records(benchmark=ours | {"reference": reference}), VERIFIER)
    assert "| human_eval (reference) | 20 | 2,000 | 1.250 |" in write_report(tmp_path, report).read_text()
    assert report["steps"]["benchmark"]["tokens_per_s"] == 1200.0  # both were answered in its time


def test_a_draft_that_training_went_on_from_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "went on from" not in printed(capsys)
    text = printed(capsys, train=ACCOUNTS["train"] | {"init_from": "/drafts/theirs"})
    assert "train: went on from the draft /drafts/theirs" in text


def test_serve_lines_survive_a_shell_and_name_the_directories() -> None:
    found = records()
    serve = build_report(config(), found, VERIFIER)["serve"]
    for form in ("speculators", "flat"):
        words = shlex.split(serve[form])
        assert words[:3] == ["vllm", "serve", "/models/small one"]
        assert words[3] == "--speculative-config"
        assert json.loads(words[4]) == {
            "method": "eagle3",
            "model": f"/out/convert/{found['convert'].fingerprint[:8]}/{form}",
            "num_speculative_tokens": 3,
        }


def test_serve_lines_carry_what_the_verifier_needs() -> None:
    cfg = config(tensor_parallel_size=8)
    cfg.verifier.trust_remote_code = True
    words = shlex.split(build_report(cfg, records(), VERIFIER)["serve"]["flat"])
    assert words[3:6] == ["--tensor-parallel-size", "8", "--trust-remote-code"]


def test_files_hold_the_report(tmp_path: Path) -> None:
    report = build_report(config(), records(), VERIFIER)
    page = write_report(tmp_path / "runs" / "r1", report)
    assert json.loads((page.parent / "report.json").read_text()) == report
    text = page.read_text()
    assert "| mt_bench | 40 | 4,000 | 1.291 | 0.214 0.047 0.030 |" in text
    assert report["serve"]["speculators"] in text and "90 used + 10 dropped" in text


def test_steps_that_did_not_run_are_left_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    only = {"prompts": records()["prompts"]}
    report = build_report(config(), only, VERIFIER)
    print_table(report)
    assert "benchmark" not in capsys.readouterr().out and "serve" not in write_report(tmp_path, report).read_text()
