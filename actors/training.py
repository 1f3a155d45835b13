"""Runs a training job on Ray Train's workers."""

import logging
from pathlib import Path
from typing import Any

from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from actors.node_labels import ANYWHERE, Place
from actors.quiet import runtime_env
from actors.room import wait_for_workers
from actors.train_job import TrainJob

KEYS = "train.num_workers, train.num_cpus_per_worker, train.use_gpu or cluster.num_cpus"


def worker(config: dict[str, Any]) -> None:
    """Imports what trains only where it trains: Ray Train's controller would pay for it too."""
    from actors.train_loop import train_worker

    train_worker(config)


def fit(job: TrainJob, place: Place = ANYWHERE) -> None:
    """Train to the end. A dead worker restarts the group, which goes on from the newest complete checkpoint.

    RuntimeError when the cluster is too small for all workers within `place.wait_s`: Ray Train would wait for ever.
    """
    cfg = job.cfg
    logging.getLogger("ray.train").setLevel(logging.WARNING)
    resources = {"CPU": cfg.num_cpus_per_worker} | ({"GPU": 1} if cfg.use_gpu else {})
    wait_for_workers(resources, cfg.num_workers, "train", place, KEYS)
    scaling = ScalingConfig(
        num_workers=cfg.num_workers,
        use_gpu=cfg.use_gpu,
        resources_per_worker=resources,
        label_selector=dict(place.labels) or None,
    )
    TorchTrainer(
        worker,
        train_loop_config={"job": job},
        torch_config=TorchConfig(backend="nccl" if cfg.use_gpu else "gloo"),
        scaling_config=scaling,
        run_config=RunConfig(
            name=f"train-{Path(job.out).name}",  # as the dashboard shows it; the same name resumes
            storage_path=job.out,
            failure_config=FailureConfig(max_failures=cfg.max_failures),
            worker_runtime_env=runtime_env(),
        ),
    ).fit()
