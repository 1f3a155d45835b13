"""Injects faults into a round until its run is done or the time is over, and times how long the work takes to go on."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.faults import FAULTS
from tests.chaos.machines import Machines
from tests.chaos.rounds import Round
from tests.chaos.tally import Tallies

GAP_S = (0.2, 3.0)  # between faults
RECOVERY_S = 240.0  # nothing takes longer


@dataclass
class Storm:
    """`only`: these faults, each once, in this order; else by chance until `over`."""

    machines: Machines
    chance: random.Random
    over: Callable[[], bool]
    tallies: Tallies
    only: list[str] | None = None

    def play(self, work: Round) -> int:
        """Differences between the disturbed and the undisturbed run."""
        work.calm.finish(600)
        self.disturb(work)
        work.stormy.finish(600)
        found = work.differences()
        print(f"{work.kind} round: {work.stormy.starts} drivers, {len(found)} differences", flush=True)
        for difference in found[:5]:
            print(f"  {difference}\n  its log: {work.stormy.log}")
        return len(found)

    def disturb(self, work: Round) -> None:
        faults, run = FAULTS[work.kind], work.stormy
        left = list(self.only) if self.only else None
        while work.kind == "train" and not run.trained() and not run.keep_going():
            time.sleep(0.2)  # half a minute of imports: nothing to lose yet
        while not run.keep_going() and not self.over() and left != []:
            name = left[0] if left else self.chance.choices(list(faults), [often for _, often in faults.values()])[0]
            before, began = work.progress(), time.monotonic()
            did = faults[name][0](self.machines, run, self.chance)
            if did is None:
                time.sleep(0.2)
                continue
            left = left and left[1:]
            self.watch(work, name, did, before, began)

    def watch(self, work: Round, name: str, did: str, before: int, began: float) -> None:
        """Wait until the work goes on, and a little longer."""
        tally = self.tallies[name]
        tally.injected += 1
        done = work.stormy.keep_going()
        while not done and work.progress() <= before and time.monotonic() - began < RECOVERY_S:
            time.sleep(0.1)
            done = work.stormy.keep_going()
        took = time.monotonic() - began
        if done or work.progress() > before:
            tally.survived += 1
            tally.recovery_s.append(took)
        print(f"{name}: {did}; went on after {took:.1f} s", flush=True)
        until = time.monotonic() + self.chance.uniform(*GAP_S)
        while time.monotonic() < until and not work.stormy.keep_going():
            time.sleep(0.1)
