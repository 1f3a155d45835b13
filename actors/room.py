"""Waiting for a cluster that is large enough, aloud and not for ever: Ray by itself would wait in silence.

Size is what nodes have, not what they have free: what other work holds comes back.
"""

import contextlib
import logging
import time
from collections.abc import Iterator
from typing import Any

import ray
from ray.util import placement_group, remove_placement_group

from actors.engine import EngineSpec
from actors.node_labels import Place, fits
from actors.node_types import would_bring

log = logging.getLogger(__name__)
POLL_S = 2.0
ENGINE_KEYS = "engine.num_gpus (with engine.tensor_parallel_size), engine.num_cpus or cluster.num_cpus"
Resources = dict[str, float]


def engine_resources(spec: EngineSpec) -> Resources:
    return _nonzero({"CPU": spec.config.num_cpus, "GPU": spec.config.num_gpus})


def wait_for_node(wanted: Resources, name: str, place: Place, change: str) -> None:
    """Wait until some node is large enough; RuntimeError says what is missing. `change`: keys that ask for less."""
    wait_for_workers(wanted, 1, name, place, change)


def wait_for_workers(each: Resources, count: int, name: str, place: Place, change: str) -> None:
    """Wait until the nodes of `place` are large enough for `count` workers that need `each`; RuntimeError says what is
    missing, and which node type would bring it."""
    each = _nonzero(each)
    if _fitting(each, place) >= count:
        return
    lack, wait_s = _lack(each, count, name, place), place.wait_s
    log.warning("%s; waiting up to %g s for more (cluster.wait_s)", lack, wait_s)
    deadline = time.monotonic() + wait_s
    with _asked_for(each, count, place):
        while _fitting(each, place) < count:
            if time.monotonic() >= deadline:
                raise RuntimeError(
                    f"{_lack(each, count, name, place)}. Nothing more came within {wait_s:g} s (cluster.wait_s): add "
                    f"nodes, or change {change}."
                )
            time.sleep(min(POLL_S, max(0.01, wait_s / 10)))


def labelled(bundles: int, place: Place) -> dict[str, Any]:
    """For a placement group on these nodes."""
    return {"bundle_label_selector": [dict(place.labels)] * bundles} if place.labels else {}


def _nonzero(amounts: Resources) -> Resources:
    return {kind: amount for kind, amount in amounts.items() if amount > 0}


def _nodes(place: Place) -> list[Resources]:
    alive = (node for node in ray.nodes() if node["Alive"])
    return [node["Resources"] for node in alive if fits(place.labels, node.get("Labels", {}))]


def _fitting(each: Resources, place: Place) -> float:
    """How many such workers the nodes have room for."""
    nodes = _nodes(place)
    if not each and nodes:
        return float("inf")
    return sum(min(node.get(kind, 0) // amount for kind, amount in each.items()) for node in nodes)


def _lack(each: Resources, count: int, name: str, place: Place) -> str:
    nodes = _nodes(place)
    have = f"the most that {len(nodes)} node{'s have' if len(nodes) != 1 else ' has'} is "
    have += said({kind: max((node.get(kind, 0) for node in nodes), default=0) for kind in each})
    if place.labels and not nodes:
        have = "there is no such node"
    have += would_bring(each, place.labels)
    if count == 1:
        return f"{name} needs {said(each)} on one node{place.said()}; {have}"
    where = place.said() and f", on nodes{place.said()}"
    return (
        f"{name} needs {count} workers with {said(each)} each{where}, and there is room for "
        f"{_fitting(each, place):g}; {have}"
    )


def said(amounts: Resources) -> str:
    """As `8 GPUs and 16 CPUs`."""
    ordered = sorted(amounts.items(), reverse=True)  # GPUs first
    return " and ".join(f"{amount:g} {kind}{'' if amount == 1 else 's'}" for kind, amount in ordered)


@contextlib.contextmanager
def _asked_for(each: Resources, count: int, place: Place) -> Iterator[None]:
    """While we wait, a cluster that scales must see what for."""
    group = placement_group([each] * count, **labelled(count, place))
    try:
        yield
    finally:
        remove_placement_group(group)
