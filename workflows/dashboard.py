"""Eyrie's Grafana dashboard: python -m workflows.dashboard FOLDER

Writes eyrie_grafana_dashboard.json there. Ray's Grafana finds it when RAY_METRICS_GRAFANA_DASHBOARD_OUTPUT_DIR names
that folder on the head (docs/clusters.md). One row for each step; every query is of a metric in actors/metrics.py.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.metrics import COUNTERS, GAUGES
from workflows.state_metrics import VALUES

FILE, UID = "eyrie_grafana_dashboard.json", "eyrie"
WIDTH, HEIGHT, COLUMNS = 8, 7, 24  # of a panel, and of the page
RUN = 'run=~"$run"'
STATES = {value: " or ".join(state for state in VALUES if VALUES[state] == value) for value in VALUES.values()}


@dataclass(frozen=True)
class Panel:
    """`queries`: PromQL by legend."""

    title: str
    unit: str
    queries: dict[str, str]


def total(counter: str, where: str) -> str:
    """What a counter has come to, over every process that counted."""
    assert counter in COUNTERS
    return f"sum(ray_eyrie_{counter}_total{{{RUN},{where}}})"


def fault(counter: str, where: str) -> str:
    """The same of what may never happen: 0 then, and not an empty panel."""
    return f"{total(counter, where)} or vector(0)"


def rate(counter: str, where: str, by: str = "") -> str:
    """Per second."""
    assert counter in COUNTERS
    return f"sum{_by(by)}(rate(ray_eyrie_{counter}_total{{{RUN},{where}}}[$__rate_interval]))"


def gauge(name: str, where: str, by: str = "") -> str:
    assert name in GAUGES
    return f"max{_by(by)}(ray_eyrie_{name}{{{RUN},{where}}})"


def _by(label: str) -> str:
    return f" by ({label}) " if label else ""


def pool_panels(step: str) -> list[Panel]:
    """Of a step whose shards go through a pool of workers."""
    of = f'step="{step}"'
    captured = {"captured": rate("tokens_captured", of)} if step == "extract" else {}
    return [
        Panel(
            "tokens",
            "short",
            {"generated": rate("tokens_generated", of), "read": rate("tokens_read", of), **captured},
        ),
        Panel("engine busy share", "percentunit", {"worker {{worker}}": gauge("engine_busy_share", of, by="worker")}),
        Panel(
            "workers and queue",
            "short",
            {name.replace("_", " "): gauge(name, of) for name in ("workers", "queue_depth", "shards_in_flight")},
        ),
        Panel(
            "shards",
            "short",
            {
                "done": total("shards_done", of),
                "failed": fault("shards_failed", of),
                "retried": fault("shards_retried", of),
            },
        ),
        Panel(
            "conversations lost",
            "short",
            {"dropped": fault("samples_dropped", of), "of these dead letters": fault("dead_letters", of)},
        ),
        Panel("written", "Bps", {"bytes": rate("bytes_written", of)}),
    ]


OF_ENGINES = 'step=~"speculators|flat|draft|plain|reference"'  # as steps/convert.py and steps/benchmark.py name them
ENGINES = [
    Panel("tokens", "short", {"{{step}}": rate("tokens_generated", OF_ENGINES, by="step")}),
    Panel("engine busy share", "percentunit", {"{{step}}": gauge("engine_busy_share", OF_ENGINES, by="step")}),
]
ROWS: dict[str, list[Panel]] = {
    "run": [Panel("state of each step", "states", {"{{step}}": gauge("step_state", 'step!=""', by="step")})],
    "generate (extract.mode=two_pass)": pool_panels("generate"),
    "extract": pool_panels("extract"),
    "train": [
        Panel("loss", "none", {"loss": gauge("train_loss", 'step="train"')}),
        Panel(
            "predicted acceptance length",
            "none",
            {"at validation": gauge("predicted_acceptance_length", 'step="train"')},
        ),
        Panel("tokens per second", "short", {"all trainers": gauge("train_tokens_per_second", 'step="train"')}),
        Panel("steps", "short", {"made": gauge("train_step", 'step="train"')}),
        Panel("tokens trained", "short", {"all epochs": total("tokens_trained", 'step="train"')}),
    ],
    "convert, benchmark (an engine that both use keeps its first name)": ENGINES,
}


def dashboard() -> dict[str, Any]:
    """What Grafana reads."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        panels.append(
            {"type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": _at(0, y, COLUMNS, 1)}
        )
        y += 1
        width = COLUMNS if len(row) == 1 else WIDTH
        for i, panel in enumerate(row):
            place = _at(i * WIDTH % COLUMNS, y + i * WIDTH // COLUMNS * HEIGHT, width, HEIGHT)
            panels.append(_panel(panel, place))
        y += (len(row) * width + COLUMNS - 1) // COLUMNS * HEIGHT
    numbered = [{"id": number, **panel} for number, panel in enumerate(panels, 1)]
    variables = [
        {"name": "datasource", "label": "data source", "type": "datasource", "query": "prometheus", "hide": 2},
        {
            "name": "run",
            "type": "query",
            "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "query": {"query": "label_values(ray_eyrie_step_state, run)", "refId": "run"},
            "refresh": 2,
            "includeAll": True,
            "multi": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        },
    ]
    return {
        "uid": UID,
        "title": "Eyrie",
        "tags": ["eyrie", "ray"],
        "timezone": "browser",
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "schemaVersion": 39,
        "editable": True,
        "templating": {"list": variables},
        "panels": numbered,
    }


def _panel(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    states = panel.unit == "states"
    mappings = [{"type": "value", "options": {str(value): {"text": text} for value, text in STATES.items()}}]
    defaults = {"mappings": mappings} if states else {"unit": panel.unit, "min": 0}
    targets = [
        {"refId": chr(ord("A") + i), "datasource": source, "expr": query, "legendFormat": legend}
        for i, (legend, query) in enumerate(panel.queries.items())
    ]
    return {
        "type": "state-timeline" if states else "timeseries",
        "title": panel.title,
        "datasource": source,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": targets,
    }


def _at(x: int, y: int, w: int, h: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": w, "h": h}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m workflows.dashboard", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    folder = parser.parse_args(argv).folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_text(json.dumps(dashboard(), indent=1) + "\n")
    print(folder / FILE)


if __name__ == "__main__":
    main()
