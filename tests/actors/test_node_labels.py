"""Ray's label selectors as Eyrie reads them when it counts nodes (tests/ray/test_node_groups.py has Ray's own view)."""

from pathlib import Path

import pytest
import yaml

from actors import node_types
from actors.node_labels import fits, is_condition


@pytest.mark.parametrize(
    ("condition", "value", "expected"),
    [
        ("spot", "spot", True),
        ("spot", "on-demand", False),
        ("spot", None, False),
        ("!spot", "on-demand", True),
        ("!spot", "spot", False),
        ("!spot", None, True),
        ("in(H200, H100)", "H100", True),
        ("in(H200,H100)", "A100", False),
        ("!in(H200, H100)", "A100", True),
        ("!in(H200, H100)", "H100", False),
    ],
)
def test_a_condition(condition: str, value: str | None, expected: bool) -> None:
    assert is_condition(condition)
    assert fits({"kind": condition}, {} if value is None else {"kind": value}) is expected


def test_every_condition_must_hold() -> None:
    selector = {"group": "extract", "market": "!spot"}
    assert fits(selector, {"group": "extract", "market": "on-demand", "more": "x"})
    assert not fits(selector, {"group": "extract", "market": "spot"})
    assert fits({}, {})


@pytest.mark.parametrize("condition", ["", "-a", "in()", "in(a", "!!a", "a b"])
def test_what_is_no_condition(condition: str) -> None:
    assert not is_condition(condition)


def test_the_node_type_that_would_bring_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launched = tmp_path / "ray_bootstrap_config.yaml"
    monkeypatch.setattr(node_types, "LAUNCHED", launched)
    need = {"GPU": 8.0}
    assert node_types.would_bring(need, {"group": "extract"}) == ""  # no launcher was here
    launched.write_text((Path(__file__).resolve().parents[2] / "cluster.yaml").read_text())
    assert node_types.would_bring(need, {"group": "extract"}) == (
        "; node type extract (max_workers 8) of cluster.yaml would bring that"
    )
    assert "extract (max_workers 8) or train (max_workers 1)" in node_types.would_bring(need, {})
    assert node_types.would_bring({"GPU": 16.0}, {}) == (
        "; no node type of cluster.yaml has that (head, extract, train)"
    )
    launched.write_text(yaml.safe_dump(["damaged"]))
    assert node_types.would_bring(need, {}) == ""
