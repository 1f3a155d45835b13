"""Faults at random times against Eyrie on a local cluster: python -m tests.chaos --minutes 20 --seed S

Each round does the same work with another seed, first undisturbed, then under faults. At its end the committed shards
must be the same, byte for byte, or the order of the training data and the weights; with the real vLLM the ids, and the
states within bf16 noise. Prints a table of the faults. Exit code: 0 nothing was lost.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.faults import FAULTS
from tests.chaos.machines import Machines
from tests.chaos.rounds import make_round
from tests.chaos.storm import Storm
from tests.chaos.tally import Tallies
from tests.tiny import write_tiny_llama


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
    tallies = Tallies()
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    verifier = write_tiny_llama(folder / "verifier")
    end, lost, number = time.monotonic() + 60 * args.minutes, 0, 0
    machines = Machines(3)

    def over() -> bool:
        return time.monotonic() >= end or tallies.injected() >= args.faults

    storm = Storm(machines, random.Random(args.seed), over, tallies, args.only)
    try:
        while not over() and not (number and args.only):
            kind = args.rounds[number % len(args.rounds)]
            work = make_round(kind, number, folder, verifier, machines, args.conversations)
            try:
                lost += storm.play(work)
            finally:
                work.close()
            number += 1
            if args.json:
                tallies.write(args.json, seed=args.seed, minutes=args.minutes, rounds=number, differences=lost)
    finally:
        machines.close()
    print(tallies.table())
    print(f"\n{number} rounds, {tallies.injected()} faults, {lost} differences to the undisturbed runs")
    if not lost:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
