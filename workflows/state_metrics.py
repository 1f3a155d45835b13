"""The state of each step as a metric of the driver."""

from actors.metrics import Metrics
from workflows.run_state import DONE, FAILED, RUNNING, STOPPED, WAITING

VALUES = {WAITING: 0, RUNNING: 1, DONE: 2, FAILED: 3, STOPPED: 3}


class StateMetrics:
    """Called with each change (workflows/run_state.py)."""

    def __init__(self) -> None:
        self._steps: dict[str, Metrics] = {}

    def __call__(self, step: str, state: str) -> None:
        self._steps.setdefault(step, Metrics(step)).set("step_state", VALUES[state])
