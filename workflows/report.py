"""The end of a run: one report from the records of its steps, as JSON, as Markdown and on the terminal (pure)."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from actors.commit import replace_atomically
from actors.verifier import Verifier
from conf.schema import EyrieConfig
from workflows import gate_report
from workflows.artifact import Record
from workflows.benchmark_report import measured_sets, sentences
from workflows.fingerprint import SHORT
from workflows.tables import markdown, plain

Report = dict[str, Any]
Table = tuple[list[str], list[list[str]]]  # header, rows


def build_report(cfg: EyrieConfig, records: Mapping[str, Record], verifier: Verifier) -> Report:
    """JSON-able report of a finished run; steps without a record are left out."""
    report: Report = {
        "name": cfg.name,
        "verifier": {"source": cfg.verifier.source, "path": verifier.path, "fingerprint": verifier.fingerprint},
        "steps": {name: _step(record) for name, record in records.items()},
    }
    if "prompts" in records:
        report["prompts"] = _balance(records["prompts"].accounting, "read", "used")
    for name in ("generate", "extract"):
        if name in records and "samples_in" in records[name].accounting:
            report[name] = _balance(records[name].accounting, "samples_in", "samples")
    if "extract" in records and "gate" in records["extract"].accounting:
        report["gate"] = records["extract"].accounting["gate"]
    if "benchmark" in records:
        report["benchmark"] = records["benchmark"].accounting
    if "convert" in records:
        report["serve"] = _serve(cfg, records["convert"], verifier)
    return report


def write_report(run_dir: Path, report: Report) -> Path:
    """Leave report.json and report.md in `run_dir`; returns the latter."""
    run_dir.mkdir(parents=True, exist_ok=True)
    replace_atomically(run_dir / "report.json", json.dumps(report, indent=1) + "\n")
    verifier = report["verifier"]
    page = [f"# {report['name']}", "", f"Verifier: {verifier['source']} ({verifier['fingerprint']})", ""]
    for header, rows in _tables(report):
        page += [markdown(header, rows), ""]
    page += [f"- {line}" for line in _sentences(report)]
    if shown := gate_report.shown_rows(report.get("gate", {})):
        header = ["source", "sample", "answer", "after", "first supervised token", "last", "tokens"]
        page += ["", "What is learnt from, as the engine reads it:", "", markdown(header, shown)]
    if "serve" in report:
        page += ["", "Serve it:", "", "```", *report["serve"].values(), "```"]
    file = run_dir / "report.md"
    replace_atomically(file, "\n".join(page) + "\n")
    return file


def print_table(report: Report) -> None:
    """The report on the terminal."""
    parts = [plain(header, rows) for header, rows in _tables(report)]
    parts.append("\n".join(_sentences(report)))
    parts.append("\n".join(f"{form}: {line}" for form, line in report.get("serve", {}).items()))
    print("\n\n".join(part for part in parts if part))


def _step(record: Record) -> dict[str, Any]:
    """Counts and rate of a step; no rate when it was resumed, as `seconds` is then only the last attempt's."""
    account = record.accounting
    if record.step == "benchmark":
        samples = sum(one["prompts"] for _, one in measured_sets(account))
        tokens = sum(one["output_tokens"] for _, one in measured_sets(account))
    else:
        samples = _first(account, "samples", "used")
        tokens = _first(account, "tokens", "rows", "output_tokens")
    resumed = record.provenance.get("resumed", False)
    rate = None if tokens is None or resumed or record.seconds <= 0 else tokens / record.seconds
    return {
        "fingerprint": record.fingerprint,
        "samples": samples,
        "tokens": tokens,
        "seconds": record.seconds,
        "tokens_per_s": rate,
        "resumed": resumed,
        "accounting": account,
    }


def _balance(account: Mapping[str, Any], read: str, used: str) -> dict[str, Any]:
    """What came in is what was used and what was dropped; the rest is named, not hidden."""
    unaccounted = account[read] - account[used] - sum(account["dropped"].values())
    return {"in": account[read], "used": account[used], "dropped": account["dropped"], "unaccounted": unaccounted}


def _serve(cfg: EyrieConfig, convert: Record, verifier: Verifier) -> dict[str, str]:
    """The `vllm serve` line of each checkpoint format."""
    folder = Path(cfg.output_root) / convert.step / convert.fingerprint[:SHORT]
    flags = []
    if cfg.engine.tensor_parallel_size > 1:
        flags += ["--tensor-parallel-size", str(cfg.engine.tensor_parallel_size)]
    if cfg.verifier.trust_remote_code:
        flags += ["--trust-remote-code"]
    lines = {}
    for form in convert.accounting["formats"]:
        draft = {
            "method": "eagle3",
            "model": str(folder / form),
            "num_speculative_tokens": cfg.benchmark.num_speculative_tokens,
        }
        speculative = json.dumps(draft, separators=(",", ":"))
        lines[form] = shlex.join(["vllm", "serve", verifier.path, *flags, "--speculative-config", speculative])
    return lines


def _tables(report: Report) -> list[Table]:
    steps = [
        [
            name,
            step["fingerprint"][:SHORT],
            _count(step["samples"]),
            _count(step["tokens"]),
            f"{step['seconds']:.1f}",
            "resumed" if step["resumed"] else _number(step["tokens_per_s"], 1),
        ]
        for name, step in report["steps"].items()
    ]
    tables: list[Table] = [(["step", "fingerprint", "samples", "tokens", "seconds", "tokens/s"], steps)]
    if "benchmark" in report:
        sets = [
            [
                name,
                _count(one["prompts"]),
                _count(one["output_tokens"]),
                _number(one["acceptance_length"], 3),
                " ".join(_number(rate, 3) for rate in one["acceptance_per_position"]),
            ]
            for name, one in measured_sets(report["benchmark"])
        ]
        tables.append((["evaluation set", "prompts", "tokens", "acceptance length", "acceptance per position"], sets))
    return tables


def _sentences(report: Report) -> list[str]:
    lines = []
    for name in ("prompts", "generate", "extract"):
        if name in report:
            lines.append(f"{name}: {_sum(report[name])}")
    lines += gate_report.sentences(report.get("gate", {}))
    if train := report["steps"].get("train"):
        account = train["accounting"]
        coverage = f"{account['vocab_coverage']:.1%}" if account.get("vocab_coverage") is not None else "unknown"
        shown = " ".join(f"{key} {_number(value, 3)}" for key, value in account.get("val", {}).items())
        steps, shown = account["steps"], shown or "none"
        lines.append(f"train: {steps} steps, draft vocabulary covers {coverage} of the tokens; validation {shown}")
        if account.get("init_from"):
            lines.append(f"train: went on from the draft {account['init_from']}, in its vocabulary")
    if "benchmark" in report:
        lines += sentences(report["benchmark"])
    return lines


def _sum(balance: Mapping[str, Any]) -> str:
    dropped = {reason: count for reason, count in balance["dropped"].items() if count}
    reasons = f" ({', '.join(f'{count} {reason}' for reason, count in dropped.items())})" if dropped else ""
    line = f"{balance['in']} in = {balance['used']} used + {sum(dropped.values())} dropped{reasons}"
    return line if not balance["unaccounted"] else f"{line} + {balance['unaccounted']} UNACCOUNTED FOR"


def _first(account: Mapping[str, Any], *keys: str) -> int | None:
    return next((account[key] for key in keys if key in account), None)


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _number(value: Any, digits: int) -> str:
    return f"{value:.{digits}f}" if isinstance(value, (int, float)) else "" if value is None else str(value)
