"""A Ray cluster of several nodes on this host: a head without CPUs, and nodes that come and go."""

import contextlib
import subprocess
import sys
from typing import Any

import psutil
from ray.cluster_utils import Cluster

CPUS = 2  # of a node: two workers
QUICK = {  # a node that is gone is missed after 1.5 s, not after 50
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 3,
    "health_check_timeout_ms": 500,
    "health_check_initial_delay_ms": 0,
}


class Machines:
    """`nodes` are those that work; their processes belong to us and end with `close`."""

    def __init__(self, count: int):
        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": 100 << 20, "_system_config": QUICK}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address: str = self._cluster.address
        self.nodes: list[Any] = []
        for _ in range(count):
            self.add()

    def add(self) -> None:
        self.nodes.append(self._cluster.add_node(num_cpus=CPUS, object_store_memory=80 << 20))

    def lose(self, node: Any) -> None:
        """The power goes: every process of the node is killed."""
        self.nodes.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def drain(self, node: Any) -> None:
        """As a cloud does before it takes a machine back."""
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "drain-node", "--address", self.address),
            *("--node-id", node.node_id, "--reason", "DRAIN_NODE_REASON_PREEMPTION"),
            *("--reason-message", "chaos", "--deadline-remaining-seconds", "8"),
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=60)

    def processes(self, title: str) -> list[psutil.Process]:
        """Actors of this cluster whose process is called so; other Rays of the host are not ours to kill."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            line = process.info["cmdline"] or [""]
            with contextlib.suppress(psutil.NoSuchProcess):
                if line[0].startswith(title) and self._owns(process):
                    found.append(process)
        return found

    def _owns(self, process: psutil.Process) -> bool:
        parent = process.parent()  # the raylet of its node
        return parent is not None and f"--gcs-address={self.address}" in parent.cmdline()

    def close(self) -> None:
        self._cluster.shutdown()
