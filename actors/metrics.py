"""What Eyrie tells Ray's metrics of itself: counters and gauges `eyrie_…` (Ray's endpoint adds `ray_`).

Ray exports what a process has set since its last export, so a gauge that is set once is gone 20 s later: gauges are
functions here, asked again every few seconds while they are shown. Tags: the run's name, the step, and for an engine
its number; never a shard, which would be a series of its own. Where no Ray runs, nothing is exported.
"""

import os
import threading
from collections.abc import Callable
from typing import Any

from actors.engine import Completion
from actors.quiet import RUN

BEAT_S = 5.0
TAGS = ("run", "step", "worker")

COUNTERS = {
    "tokens_generated": "tokens that engines wrote",
    "tokens_read": "prompt tokens that engines read",
    "tokens_captured": "tokens committed with hidden states",
    "tokens_trained": "tokens that trainers read, all epochs",
    "shards_done": "shards committed",
    "shards_failed": "shards whose worker died under them",
    "shards_retried": "shards that ran again",
    "samples_dropped": "conversations dropped or lost, dead letters included",
    "dead_letters": "conversations that killed their engine",
    "bytes_written": "bytes of committed shards",
}
GAUGES = {
    "engine_busy_share": "share of the last seconds in which an engine had work",
    "queue_depth": "shards that wait",
    "shards_in_flight": "shards under way",
    "workers": "extraction workers that are ready",
    "step_state": "0 waiting, 1 running, 2 done, 3 failed or stopped",
    "train_step": "optimizer steps made",
    "train_loss": "loss of the last step",
    "train_tokens_per_second": "tokens per second of all trainers",
    "predicted_acceptance_length": "of the draft at the last validation",
}


class Metrics:
    """Of one step in one process. Use it as a context, or `close` it: its gauges end with it."""

    def __init__(self, step: str, worker: str = ""):
        self._tags = {"run": os.environ.get(RUN, ""), "step": step, "worker": worker}
        self._gauges: dict[str, Callable[[], float]] = {}

    def count(self, name: str, amount: float = 1) -> None:
        if amount > 0 and (metric := _metric("Counter", name, COUNTERS[name])):
            metric.inc(amount, self._tags)

    def completed(self, completion: Completion) -> None:
        """Count what an engine did for a request."""
        self.count("tokens_read", len(completion.prompt_ids))
        self.count("tokens_generated", len(completion.output_ids))

    def show(self, name: str, value: Callable[[], float]) -> None:
        """Export `value()` from now on."""
        assert name in GAUGES
        self._gauges[name] = value
        _beat(self)

    def set(self, name: str, value: float) -> None:
        self.show(name, lambda: value)
        self.export()

    def export(self) -> None:
        for name, value in list(self._gauges.items()):
            if metric := _metric("Gauge", name, GAUGES[name]):
                metric.set(value(), self._tags)

    def close(self) -> None:
        self.export()
        _shown.discard(self)

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_metrics: dict[str, Any] = {}
_shown: set[Metrics] = set()
_beating = threading.Lock()  # held for ever by whoever beats


def _metric(kind: str, name: str, description: str) -> Any:
    """One of each name in a process; None without Ray."""
    import ray

    if not ray.is_initialized():
        return None
    if name not in _metrics:
        import ray.util.metrics

        made = getattr(ray.util.metrics, kind)
        _metrics[name] = made(f"eyrie_{name}", description=description, tag_keys=TAGS)
    return _metrics[name]


def _beat(metrics: Metrics) -> None:
    _shown.add(metrics)
    if _beating.acquire(blocking=False):
        threading.Thread(target=_keep, name="eyrie-metrics", daemon=True).start()


def _keep() -> None:
    wait = threading.Event()
    while not wait.wait(BEAT_S):
        for metrics in list(_shown):
            metrics.export()
