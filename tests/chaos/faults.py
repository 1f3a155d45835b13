"""What can go wrong, one function each: it does it and says so, or returns None when there is nothing to do it to."""

import contextlib
import random
import signal
from collections.abc import Callable
from pathlib import Path

import psutil

from actors.pool_size import FILE, write_size
from tests.chaos.machines import Machines
from tests.chaos.run import Run

MIN_NODES, MAX_NODES = 2, 4
LEFTOVER = ".tmp-part-00000-of-00000-"
FULL_S = 90.0  # a driver whose disk is full ends within this
Fault = Callable[[Machines, Run, random.Random], str | None]


def kill(process: psutil.Process) -> str | None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return None
    return f"process {process.pid}"


def kill_worker(machines: Machines, run: Run, chance: random.Random) -> str | None:
    workers = machines.processes("ray::ExtractionActor")
    return kill(chance.choice(workers)) if workers else None


def kill_engine(machines: Machines, run: Run, chance: random.Random) -> str | None:
    """The process that vLLM's front end talks to."""
    workers = machines.processes("ray::ExtractionActor")
    children = [child for worker in workers for child in worker.children(recursive=True)]
    engines = [child for child in children if "EngineCore" in " ".join(child.cmdline())]
    return kill(chance.choice(engines)) if engines else None


def kill_rank(machines: Machines, run: Run, chance: random.Random) -> str | None:
    ranks = machines.processes("ray::RayTrainWorker")
    return kill(chance.choice(ranks)) if ranks and run.trained() else None


def cut_checkpoint(machines: Machines, run: Run, chance: random.Random) -> str | None:
    """Half of the newest checkpoint is gone, as after a crash of the file system, and a rank must read it."""
    newest = sorted(run.root.glob("train/*/checkpoints/step-*/state.pt"))[-1:]
    ranks = machines.processes("ray::RayTrainWorker")
    if not newest or not ranks:
        return None
    with contextlib.suppress(FileNotFoundError), newest[0].open("r+b") as file:
        file.truncate(newest[0].stat().st_size // 2)
        kill(chance.choice(ranks))
        return newest[0].parent.name
    return None


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


def change_ranks(machines: Machines, run: Run, chance: random.Random) -> str | None:
    """The next driver trains with the other number of workers."""
    if not run.trained() or run.end(signal.SIGKILL) is None:
        return None
    ranks = 2 if run.more == ["train.num_workers=1"] else 1  # rounds.py starts with two
    run.more = [f"train.num_workers={ranks}"]
    return f"{ranks} ranks"


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
    (folders[0] / f"{LEFTOVER}{chance.random()}").write_bytes(b"PAR1 half a shard")
    return "half a shard"


def fill_disk(machines: Machines, run: Run, chance: random.Random) -> str | None:
    """Others take all that is free; the driver ends and says so; room is made, and it is started again."""
    if not run.root.is_mount() or not run.committed():
        return None
    ballast = run.root / "ballast"
    took = fill(ballast)
    try:
        code = run.wait(FULL_S)
    finally:
        ballast.unlink()
    if code != 0 and (code is None or "no room" not in run.said()):
        raise RuntimeError(f"the disk was full and the driver ended with {code}, without a word of it:\n{run.said()}")
    if code:
        run.start()
    return f"{took >> 10} KiB of others"


def fill(file: Path) -> int:
    """Write until nothing is free; bytes written."""
    took = 0
    with file.open("wb", buffering=0) as out, contextlib.suppress(OSError):
        while True:
            took += out.write(bytes(1 << 12))
    return took


ANYWHERE = {
    "node lost": (lose_node, 2),
    "node drained and lost": (drain_node, 1),
    "node added": (add_node, 3),
    "driver killed": (kill_driver, 1),
    "driver stopped (SIGTERM)": (stop_driver, 1),
}
FAULTS: dict[str, dict[str, tuple[Fault, int]]] = {  # while this step runs, and how often against the others
    "extract": {
        **ANYWHERE,
        "worker killed": (kill_worker, 8),
        "number of workers changed": (scale, 2),
        "temporary file left behind": (leave_temporary, 1),
        "disk full": (fill_disk, 1),
    },
    "train": {
        **ANYWHERE,
        "training rank killed": (kill_rank, 4),
        "newest checkpoint cut short, rank killed": (cut_checkpoint, 2),
        "number of ranks changed, driver killed": (change_ranks, 2),
    },
    "vllm": {"worker killed": (kill_worker, 1), "engine process killed": (kill_engine, 2)},
}
