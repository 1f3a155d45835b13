"""How a run stands: python -m workflows.status OUTPUT_ROOT [--json] [--watch]

OUTPUT_ROOT names the run, since one driver at a time works there. Read from files alone: any machine that shares them
can ask, with or without a cluster, while the run goes on or long after. Exit code: 0, or 2.
"""

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa

from actors import step_progress
from actors.dead_letters import read_dead_letters
from workflows import run_state
from workflows.lease import holder
from workflows.progress import duration
from workflows.run_state import RUNNING, StepState
from workflows.tables import aligned

WATCH_S = 2.0
KILLED = "killed"  # it was running when its driver went away without a word


@dataclass(frozen=True)
class StepStatus:
    """A line of the table; empty where there is nothing to say."""

    step: str
    fingerprint: str
    state: str
    progress: str = ""
    rate: str = ""
    left: str = ""
    workers: str = ""
    faults: str = ""
    message: str = ""


@dataclass(frozen=True)
class Status:
    name: str
    driver: str  # who works on it now, or that nobody does
    running: bool
    steps: list[StepStatus]


def status(root: Path) -> Status:
    """Of the last run below `root`. ValueError when there is none."""
    run = run_state.newest(root)
    if run is None:
        raise ValueError(f"no run was ever started in {root}. Give the output_root of one; outputs/ is the default.")
    who = holder(root)
    driven = who is not None and who.token == run.lease
    driver = f"process {run.pid} on {run.host}"
    if not driven:  # a driver that has only just taken over has no state of its own yet
        driver = f"{who.words}, which begins" if who else f"nobody (the last was {driver})"
    return Status(run.name, driver, driven, [_step(root, one, driven) for one in run.steps])


def _step(root: Path, one: StepState, driven: bool) -> StepStatus:
    """`driven`: whoever wrote this state still works on it."""
    folder = root / one.folder
    state = KILLED if one.state == RUNNING and not driven else one.state
    said = step_progress.read(folder) if one.began else None
    pool = step_progress.read_pool(folder) if one.began else None
    progress = rate = left = ""
    if said:
        what = "" if said.label == one.step else f"{said.label.removeprefix(f'{one.step}: ')}: "
        more = "".join(f", {name} {value:.4g}" for name, value in said.more.items())
        progress = f"{what}{said.done}/{said.total} {said.unit}{more}"
        rate = f"{said.rate:.3g} {said.unit}/s" if said.rate else ""
        left = duration(said.left_s) if said.left_s is not None and state == RUNNING else ""
    if one.began:
        took = (one.ended or time.time()) - one.began
        progress = ", ".join(filter(None, [progress, duration(took) if state != KILLED else ""]))
    faults = [f"{pool.deaths} shards lost their worker"] if pool and pool.deaths else []
    faults += _dead_letters(folder)
    workers = str(pool.workers) if pool and state == RUNNING else ""
    name = one.folder.split("/")[-1]
    return StepStatus(one.step, name, state, progress, rate, left, workers, ", ".join(faults), one.message)


def _dead_letters(folder: Path) -> list[str]:
    try:
        letters = len(read_dead_letters(folder))
    except (OSError, pa.ArrowException) as error:
        return [f"dead letters that cannot be read ({error})"]
    return [f"{letters} dead letters"] if letters else []


def render(found: Status) -> str:
    """As a table, with the messages of steps that failed below it."""
    header = ["step", "fingerprint", "state", "progress", "rate", "left", "workers", "faults"]
    rows = [list(asdict(one).values())[: len(header)] for one in found.steps]
    lines = [f"{found.name}: {'runs, ' if found.running else ''}{found.driver}", "", aligned(header, rows)]
    lines += [f"\n{one.step}: {one.message}" for one in found.steps if one.message and one.state == run_state.FAILED]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m workflows.status", description=__doc__.splitlines()[0])
    parser.add_argument("root", type=Path, metavar="OUTPUT_ROOT")
    parser.add_argument("--json", action="store_true", help="the same for programs")
    parser.add_argument("--watch", action="store_true", help="again every two seconds, until the run has ended")
    args = parser.parse_args(argv)
    try:
        while True:
            found = status(args.root)
            if args.watch and sys.stdout.isatty():
                print("\033[2J\033[H", end="")
            print(json.dumps(asdict(found), indent=1) if args.json else render(found), flush=True)
            if not args.watch or not found.running:
                return 0
            time.sleep(WATCH_S)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
