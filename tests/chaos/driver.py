"""The driver that the faults hit: the first steps of a configuration, as workflows/eagle3.py runs them.

python -m tests.chaos.driver LAST_STEP OVERRIDE…
"""

import logging
import sys
from pathlib import Path

from actors import training
from tests.chaos.train_worker import recorded
from tests.composed import typed
from workflows import config, runner
from workflows.cluster import session
from workflows.eagle3 import build_steps
from workflows.verifier_source import resolve_verifier


def run_to(last: str, overrides: list[str]) -> None:
    """Run the steps up to `last`."""
    cfg = config.on_this_machine(typed(*overrides))
    root = Path(cfg.output_root)
    verifier = resolve_verifier(cfg.verifier, root)
    training.worker = recorded
    with session(cfg.cluster) as ray:
        steps = build_steps(cfg, verifier, ray)
        names = [step.name for step in steps]
        runner.run(steps[: names.index(last) + 1], root, min_free=0)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    run_to(sys.argv[1], sys.argv[2:])
