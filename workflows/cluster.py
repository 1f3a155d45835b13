"""The Ray session of a driver: the cluster it is told of, or a Ray of its own on this machine."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from conf.schema import ClusterConfig

MIN_CPUS = 4  # logical: an engine and Ray Data's own tasks must fit on a laptop


@contextmanager
def session(cfg: ClusterConfig) -> Iterator[None]:
    """Ray for the length of the block. In a job or with an address we join, and leave the cluster as it was."""
    address = cfg.address or os.environ.get("RAY_ADDRESS")
    if not address:
        # a Ray of our own is reachable from this machine only; Ray 2.60 would otherwise write a token to the home folder
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    if ray.is_initialized():  # a test's
        yield
        return
    options = {"log_to_driver": True, "logging_level": logging.WARNING}
    if address:
        ray.init(address=address, **options)
    else:
        cpus = cfg.num_cpus or max(MIN_CPUS, os.cpu_count() or 1)
        ray.init(num_cpus=cpus, include_dashboard=False, **options)
    try:
        yield
    finally:
        ray.shutdown()
