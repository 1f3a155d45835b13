"""Faults at random times against Eyrie on a local cluster: python -m tests.chaos --minutes 20 --seed S

Each round does the same work with another seed, first undisturbed, then under faults. At its end the committed shards
must be the same, byte for byte, or the order of the training data and the weights; with the real vLLM the ids, and the
states within bf16 noise. Prints a table of the faults. Exit code: 0 nothing was lost.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.chaos.faults import FAULTS
from tests.chaos.machines import Machines
from tests.chaos.rounds import Round, make_round
from tests.chaos.tally import Tallies
from tests.tiny import write_tiny_llama

GAP_S = (0.2, 3.0)  # between faults
RECOVERY_S = 240.0  # nothing takes longer


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--conversations", type=int, default=200, help="of an extraction; two make a shard")
    parser.add_argument("--faults", type=int, default=10**9, help="stop after so many")
    parser.add_argument("--rounds", choices=list(FAULTS), nargs="+", default=["extract", "train"], help="in turn")
    parser.add_argument("--only", nargs="+", help="these faults, each once, in this order")
    parser.add_argument("--json", type=Path, help="where the figures go too")
    args = parser.parse_args(argv)
    chance, tallies = random.Random(args.seed), Tallies()
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    verifier = write_tiny_llama(folder / "verifier")
    end, lost, number = time.monotonic() + 60 * args.minutes, 0, 0
    machines = Machines(3)

    def over() -> bool:
        return time.monotonic() >= end or tallies.injected() >= args.faults

    try:
        while not over() and not (number and args.only):
            kind = args.rounds[number % len(args.rounds)]
            work = make_round(kind, number, folder, verifier, machines, args.conversations)
            try:
                lost += play(work, machines, chance, over, tallies, args.only)
            finally:
                work.close()
            number += 1
            if args.json:
                tallies.write(args.json, seed=args.seed, minutes=args.minutes, rounds=number, differences=lost)
    finally:
        machines.close()
    print(tallies.table())
    print(f"\n{number} rounds, {tallies.injected()} faults, {lost} differences to the undisturbed runs")
    return 1 if lost else 0


def play(
    work: Round,
    machines: Machines,
    chance: random.Random,
    over: Callable[[], bool],
    tallies: Tallies,
    only: list[str] | None,
) -> int:
    """Differences between the disturbed and the undisturbed run."""
    work.calm.finish(600)
    disturb(work, machines, chance, over, tallies, only)
    work.stormy.finish(600)
    found = work.differences()
    print(f"{work.kind} round: {work.stormy.starts} drivers, {len(found)} differences", flush=True)
    for difference in found[:5]:
        print(f"  {difference}\n  its log: {work.stormy.log}")
    return len(found)


def disturb(
    work: Round,
    machines: Machines,
    chance: random.Random,
    over: Callable[[], bool],
    tallies: Tallies,
    only: list[str] | None,
) -> None:
    """Inject faults until the run is done or the time is over; times how long each takes to be got over."""
    faults, run = FAULTS[work.kind], work.stormy
    left = list(only) if only else None
    while work.kind == "train" and not run.trained() and not run.keep_going():
        time.sleep(0.2)  # half a minute of imports: nothing to lose yet
    while not run.keep_going() and not over() and left != []:
        name = left[0] if left else chance.choices(list(faults), [weight for _, weight in faults.values()])[0]
        before, began = work.progress(), time.monotonic()
        did = faults[name][0](machines, run, chance)
        if did is None:
            time.sleep(0.2)
            continue
        left = left and left[1:]
        tallies[name].injected += 1
        done = run.keep_going()
        while not done and work.progress() <= before and time.monotonic() - began < RECOVERY_S:
            time.sleep(0.1)
            done = run.keep_going()
        took = time.monotonic() - began
        if done or work.progress() > before:
            tallies[name].survived += 1
            tallies[name].recovery_s.append(took)
        print(f"{name}: {did}; went on after {took:.1f} s", flush=True)
        gap = chance.uniform(*GAP_S)
        while not done and time.monotonic() - began < gap:
            time.sleep(0.1)
            done = run.keep_going()


if __name__ == "__main__":
    sys.exit(main())
