"""What can go wrong, one function each: it does it and says so, or returns None when there is nothing to do it to."""

import random
import signal
from collections.abc import Callable

import psutil

from actors.pool_size import FILE, write_size
from tests.chaos.machines import Machines
from tests.chaos.run import Run

MIN_NODES, MAX_NODES = 2, 4
Fault = Callable[[Machines, Run, random.Random], str | None]


def kill_worker(machines: Machines, run: Run, chance: random.Random) -> str | None:
    workers = machines.workers()
    if not workers:
        return None
    victim = chance.choice(workers)
    try:
        victim.kill()
    except psutil.NoSuchProcess:
        return None
    return f"worker {victim.pid}"


def lose_node(machines: Machines, run: Run, chance: random.Random) -> str | None:
    if len(machines.nodes) <= MIN_NODES:
        return None
    machines.lose(chance.choice(machines.nodes))
    return f"{len(machines.nodes)} nodes left"


def add_node(machines: Machines, run: Run, chance: random.Random) -> str | None:
    if len(machines.nodes) >= MAX_NODES:
        return None
    machines.add()
    return f"{len(machines.nodes)} nodes now"


def drain_node(machines: Machines, run: Run, chance: random.Random) -> str | None:
    """Drained, then gone, as a preempted machine."""
    if len(machines.nodes) <= MIN_NODES:
        return None
    node = chance.choice(machines.nodes)
    machines.drain(node)
    machines.lose(node)
    return f"{len(machines.nodes)} nodes left"


def kill_driver(machines: Machines, run: Run, chance: random.Random) -> str | None:
    return run.end(signal.SIGKILL)


def stop_driver(machines: Machines, run: Run, chance: random.Random) -> str | None:
    return run.end(signal.SIGTERM)


def scale(machines: Machines, run: Run, chance: random.Random) -> str | None:
    files = list(run.root.glob(f"extract/*/{FILE}"))
    if not files:
        return None
    wanted = chance.randint(1, 5)
    write_size(files[0].parent, wanted)
    return f"{wanted} workers"


def leave_temporary(machines: Machines, run: Run, chance: random.Random) -> str | None:
    """What a dead attempt leaves: half a shard under a temporary name."""
    folders = list(run.root.glob("extract/*"))
    if not folders:
        return None
    (folders[0] / f".tmp-part-00000-{chance.random()}").write_bytes(b"PAR1 half a shard")
    return "half a shard"


FAULTS: dict[str, tuple[Fault, int]] = {  # and how often, against the others
    "worker killed": (kill_worker, 8),
    "node lost": (lose_node, 2),
    "node drained and lost": (drain_node, 1),
    "node added": (add_node, 3),
    "driver killed": (kill_driver, 1),
    "driver stopped (SIGTERM)": (stop_driver, 1),
    "number of workers changed": (scale, 2),
    "temporary file left behind": (leave_temporary, 1),
}
