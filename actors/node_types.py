"""Node types of the launcher that started this cluster, for messages: which of them would bring what is missing."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from actors.node_labels import fits

LAUNCHED = Path("~/ray_bootstrap_config.yaml")  # `ray up` leaves the cluster.yaml there on the head, where drivers run


def would_bring(each: Mapping[str, float], labels: Mapping[str, str]) -> str:
    """A clause for a message; empty where no launcher's file is to be read (KubeRay, a cluster started by hand)."""
    try:
        types: dict[str, Any] = yaml.safe_load(LAUNCHED.expanduser().read_text())["available_node_types"]
    except (OSError, yaml.YAMLError, KeyError, TypeError):
        return ""
    found = [
        f"{name} (max_workers {kind.get('max_workers', 0)})"
        for name, kind in types.items()
        if fits(labels, kind.get("labels", {}))
        and all(kind.get("resources", {}).get(what, 0) >= amount for what, amount in each.items())
    ]
    if found:
        return f"; node type {' or '.join(found)} of cluster.yaml would bring that"
    return f"; no node type of cluster.yaml has that ({', '.join(types)})"
