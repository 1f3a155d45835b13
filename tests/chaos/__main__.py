"""Faults at random times against extractions on a local cluster: python -m tests.chaos --minutes 20 --seed S

Each round extracts the same prompts with another seed, first undisturbed and on one worker, then under faults; at its
end the committed shards must be the same, byte for byte. Prints a table of the faults. Exit code: 0 nothing was lost.
"""

import argparse
import random
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.faults import FAULTS
from tests.chaos.machines import Machines
from tests.chaos.run import Run
from tests.tiny import write_tiny_llama
from workflows.tables import plain

WORK = [
    *("extract.samples_per_shard=2", "extract.shards_in_flight=2", "extract.workers.max=3"),
    *("generate.temperature=1", "generate.max_new_tokens=24"),
]
SLOW = "+engine.extra.seconds_per_token=0.04"  # a second for a conversation
GAP_S = (0.5, 6.0)  # between faults


@dataclass
class Tally:
    """What one kind of fault did."""

    injected: int = 0
    survived: int = 0
    recovery_s: list[float] = field(default_factory=list)  # until the next shard was committed


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--conversations", type=int, default=200, help="of a round; two make a shard")
    parser.add_argument("--faults", type=int, help="stop after so many")
    args = parser.parse_args(argv)
    chance, tallies = random.Random(args.seed), defaultdict(Tally)
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    verifier = write_tiny_llama(folder / "verifier")
    end, lost, number = time.monotonic() + 60 * args.minutes, 0, 0
    machines = Machines(3)
    try:
        while time.monotonic() < end and sum(t.injected for t in tallies.values()) < (args.faults or 10**9):
            work = [*WORK, f"prompts.max_prompts={args.conversations}", f"generate.seed={number}"]
            calm, stormy = (
                Run(folder / f"{kind}-{number}", verifier, machines.address, args.conversations, *work, *more)
                for kind, more in (("calm", []), ("stormy", [SLOW]))
            )
            lost += one_round(number, calm, stormy, machines, chance, end, args.faults, tallies)
            number += 1
    finally:
        machines.close()
    print(table(tallies))
    print(f"\n{number} rounds, {sum(t.injected for t in tallies.values())} faults, {lost} shards lost or different")
    return 1 if lost else 0


def one_round(
    number: int,
    calm: Run,
    stormy: Run,
    machines: Machines,
    chance: random.Random,
    end: float,
    limit: int | None,
    tallies: dict[str, Tally],
) -> int:
    """Shards that the disturbed extraction lacks, has twice or has otherwise than the undisturbed one."""
    try:
        calm.finish(300)
        disturb(stormy, machines, chance, end, limit, tallies)
        stormy.finish(600)
    finally:
        calm.close()
        stormy.close()
    wanted, found = calm.shards(), stormy.shards()
    different = sorted(name for name in wanted | found if wanted.get(name) != found.get(name))
    leftovers = [file.name for file in stormy.root.glob("extract/*/*") if file.suffix not in (".parquet", ".json")]
    print(f"round {number}: {len(found)} of {len(wanted)} shards, {len(different)} different, {stormy.starts} drivers")
    for name in different[:5]:
        print(f"  {name}: {wanted.get(name, 'missing')[:12]} undisturbed, {found.get(name, 'missing')[:12]} disturbed")
    if left := [name for name in leftovers if name != "attempts"]:
        print(f"  left behind: {left[:5]}")
    return len(different)


def disturb(
    run: Run,
    machines: Machines,
    chance: random.Random,
    end: float,
    limit: int | None,
    tallies: dict[str, Tally],
) -> None:
    """Inject faults until the run is done or the time is over; times how long each takes to be got over."""
    names, weights = list(FAULTS), [weight for _, weight in FAULTS.values()]
    while not run.keep_going() and time.monotonic() < end:
        if limit is not None and sum(t.injected for t in tallies.values()) >= limit:
            return
        name = chance.choices(names, weights)[0]
        before, began = run.committed(), time.monotonic()
        did = FAULTS[name][0](machines, run, chance)
        if did is None:
            time.sleep(0.2)
            continue
        tally = tallies[name]
        tally.injected += 1
        gap = chance.uniform(*GAP_S)
        done = run.keep_going()
        while not done and run.committed() == before and time.monotonic() - began < 120:
            time.sleep(0.1)
            done = run.keep_going()
        took = time.monotonic() - began
        if done or run.committed() > before:
            tally.survived += 1
            tally.recovery_s.append(took)
        print(f"{name}: {did}; a shard was committed after {took:.1f} s", flush=True)
        while not done and time.monotonic() - began < gap:
            time.sleep(0.1)
            done = run.keep_going()
        if done:
            return


def table(tallies: dict[str, Tally]) -> str:
    rows = [
        [
            name,
            str(tally.injected),
            str(tally.survived),
            f"{sorted(tally.recovery_s)[len(tally.recovery_s) // 2]:.1f}" if tally.recovery_s else "",
            f"{max(tally.recovery_s):.1f}" if tally.recovery_s else "",
        ]
        for name, tally in sorted(tallies.items())
    ]
    return plain(["fault", "injected", "survived", "median s to the next shard", "longest"], rows)


if __name__ == "__main__":
    sys.exit(main())
