"""The Grafana dashboard is of the metrics that there are, and of all of them (tests/clusters has a real Prometheus)."""

import json
import re
from itertools import combinations
from pathlib import Path

from actors.metrics import COUNTERS, GAUGES
from workflows import dashboard


def test_every_metric_has_its_place_and_no_query_is_of_another() -> None:
    queries = [target["expr"] for panel in dashboard.dashboard()["panels"] for target in panel.get("targets", [])]
    asked = {name for query in queries for name in re.findall(r"ray_(eyrie_\w+)\{", query)}
    assert asked == {f"eyrie_{name}_total" for name in COUNTERS} | {f"eyrie_{name}" for name in GAUGES}


def test_panels_have_numbers_of_their_own_and_none_covers_another() -> None:
    panels = dashboard.dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"], (one, other)
        assert one["x"] + one["w"] <= 24


def test_the_command_leaves_it_in_a_folder(tmp_path: Path) -> None:
    dashboard.main([str(tmp_path / "new")])
    assert json.loads((tmp_path / "new" / dashboard.FILE).read_text()) == dashboard.dashboard()
