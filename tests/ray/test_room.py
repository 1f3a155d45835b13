"""Too little room on a real Ray with 4 CPUs and no GPU: said at once, waited for so long as told, and then an error."""

import logging
import time
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.util import placement_group_table

from actors import room
from actors.capture import Job
from actors.engine import EngineSpec, Sampling
from actors.node_labels import Place
from actors.shard_pool import run_pool
from actors.train_job import TrainJob
from actors.training import fit
from actors.verifier import read_verifier
from conf.schema import ClusterConfig, EngineConfig, EngineKind, ExtractConfig, TrainConfig
from tests.tiny_draft import TINY_DRAFT
from workflows.cluster import Session


def pending() -> list[dict[str, float]]:
    """Resources that a placement group waits for: what a cluster that scales would see."""
    groups = [group for group in placement_group_table().values() if group["state"] == "PENDING"]
    return [bundle for group in groups for bundle in group["bundles"].values()]


@pytest.mark.parametrize("wanted", [{"CPU": 4, "GPU": 0}, {"CPU": 0.5}, {"CPU": 0, "GPU": 0}])
def test_what_fits_is_not_waited_for(
    wanted: dict[str, float], local_ray: None, caplog: pytest.LogCaptureFixture
) -> None:
    began = time.monotonic()
    room.wait_for_node(wanted, "extract", Place(60), "engine.num_gpus")
    assert time.monotonic() - began < 5 and caplog.messages == []


def test_a_wait_is_said_once_at_its_start_and_its_end_names_the_keys(
    local_ray: None, caplog: pytest.LogCaptureFixture
) -> None:
    began = time.monotonic()
    with caplog.at_level(logging.INFO), pytest.raises(RuntimeError) as caught:
        room.wait_for_node({"CPU": 16, "GPU": 8}, "extract", Place(1), room.ENGINE_KEYS)
    assert 1 <= time.monotonic() - began < 10
    need = "extract needs 8 GPUs and 16 CPUs on one node; the most that 1 node has is 0 GPUs and 4 CPUs"
    assert caplog.messages == [f"{need}; waiting up to 1 s for more (cluster.wait_s)"]
    assert str(caught.value).startswith(f"{need}. Nothing more came within 1 s (cluster.wait_s): add nodes, or change")
    assert "engine.num_gpus" in str(caught.value)


def test_what_is_not_wanted_is_not_named_as_a_need(local_ray: None) -> None:
    with pytest.raises(RuntimeError, match=r"^x needs 64 CPUs on one node; the most that 1 node has is 4 CPUs\. "):
        room.wait_for_node({"CPU": 64, "GPU": 0}, "x", Place(0), "keys")
    with pytest.raises(RuntimeError, match=r"^x needs 1 GPU on one node; the most that 1 node has is 0 GPUs\. "):
        room.wait_for_node({"GPU": 1}, "x", Place(0), "keys")


def test_workers_must_fit_one_by_one_and_all_together(local_ray: None) -> None:
    room.wait_for_workers({"CPU": 2}, 2, "train", Place(0), "keys")
    with pytest.raises(
        RuntimeError, match=r"train needs 2 workers with 3 CPUs each, and there is room for 1; the most"
    ):
        room.wait_for_workers({"CPU": 3}, 2, "train", Place(0), "keys")


def test_room_that_comes_ends_the_wait_and_until_then_the_cluster_sees_the_need(
    local_ray: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node joins during the second look; Ray of a test cannot grow, so what it says of its nodes does."""
    nodes, seen = ray.nodes(), []

    def joins(_: float) -> None:
        seen.append(pending())
        if len(seen) > 1:
            monkeypatch.setattr(
                room.ray, "nodes", lambda: [*nodes, {"Alive": True, "Resources": {"GPU": 8.0, "CPU": 16}}]
            )

    monkeypatch.setattr(room.time, "sleep", joins)
    room.wait_for_node({"GPU": 8}, "extract", Place(60), "keys")
    assert seen == [[{"GPU": 8.0}]] * 2
    monkeypatch.undo()
    for _ in range(50):
        if not pending():
            break
        time.sleep(0.1)
    assert pending() == []


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_gpus": 8, "num_cpus": 16}, r"extract needs 8 GPUs and 16 CPUs on one node.*engine\.num_gpus"),
        ({"num_gpus": 0, "num_cpus": 5}, r"extract needs 5 CPUs on one node.*engine\.num_cpus"),
    ],
)
def test_a_pool_whose_worker_fits_no_node_is_refused(
    config: dict[str, Any], message: str, local_ray: None, tiny_llama: Path, tmp_path: Path
) -> None:
    spec = EngineSpec(str(tiny_llama), EngineConfig(kind=EngineKind.fake, **config))
    job = Job("prompts.parquet", str(tmp_path), ((0, 1),), Sampling(1), keep_truncated=True, max_model_len=99)
    with pytest.raises(RuntimeError, match=message):
        list(run_pool(spec, job, [0], ExtractConfig(), "extract", Place(0.1)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"use_gpu": True}, r"train needs 1 GPU and 1 CPU on one node; the most that 1 node has is 0 GPUs and 4 CPUs"),
        ({"use_gpu": False, "num_workers": 5}, r"train needs 5 workers with 1 CPU each, and there is room for 4"),
        ({"use_gpu": False, "num_cpus_per_worker": 8}, r"train needs 8 CPUs on one node.*train\.num_cpus_per_worker"),
    ],
)
def test_training_that_the_cluster_has_no_room_for_is_refused(
    config: dict[str, Any], message: str, local_ray: None, tiny_llama: Path, tmp_path: Path
) -> None:
    cfg = TrainConfig(epochs=1, lr=1e-3, **config)
    job = TrainJob(cfg, TINY_DRAFT, read_verifier(tiny_llama), (), frozenset(), frozenset(), str(tmp_path))
    with pytest.raises(RuntimeError, match=message):
        fit(job, Place(0.1))
    assert list(tmp_path.iterdir()) == []


def test_a_session_waits_as_long_as_cluster_wait_s_says(local_ray: None, tiny_llama: Path, tmp_path: Path) -> None:
    session = Session(ClusterConfig(wait_s=1))
    spec = EngineSpec(str(tiny_llama), EngineConfig(kind=EngineKind.fake, num_gpus=1))
    work = Job("prompts.parquet", str(tmp_path), ((0, 1),), Sampling(1), keep_truncated=True, max_model_len=99)
    with pytest.raises(RuntimeError, match=r"extract needs 1 GPU.* within 1 s \(cluster\.wait_s\)"):
        list(session.run_shards(spec, work, [0], ExtractConfig(), "extract"))
    cfg = TrainConfig(epochs=1, lr=1e-3, use_gpu=True)
    job = TrainJob(cfg, TINY_DRAFT, read_verifier(tiny_llama), (), frozenset(), frozenset(), str(tmp_path))
    with pytest.raises(RuntimeError, match=r"train needs 1 GPU.* within 1 s \(cluster\.wait_s\)"):
        session.fit(job)
    with (
        pytest.raises(RuntimeError, match=r"draft needs 1 GPU.* within 1 s \(cluster\.wait_s\)"),
        session(spec, "draft"),
    ):
        pass
    session.close()
    assert ray.is_initialized()
