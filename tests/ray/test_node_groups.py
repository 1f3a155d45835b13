"""Steps take nodes by label, on a Ray whose one node is labelled group=tests."""

from pathlib import Path

import pytest

from actors import room
from actors.capture import Job
from actors.engine import EngineSpec, Sampling
from actors.node_labels import Place
from actors.reservation import Reservation
from actors.train_job import TrainJob
from actors.verifier import read_verifier
from conf.schema import ClusterConfig, EngineConfig, EngineKind, ExtractConfig, LabelsConfig, TrainConfig
from tests.tiny_draft import TINY_DRAFT
from workflows.cluster import Session


def at(condition: str) -> Place:
    return Place(1, {"group": condition}, "cluster.labels.extract")


@pytest.mark.parametrize(
    ("condition", "there"),
    [
        ("tests", True),
        ("!others", True),
        ("in(tests, others)", True),
        ("!in(others, more)", True),
        ("others", False),
        ("!tests", False),
        ("in(others, more)", False),
        ("!in(tests, others)", False),
    ],
)
def test_ray_places_work_where_we_count_room(condition: str, there: bool, local_ray: None) -> None:
    held = Reservation({"CPU": 1}, at(condition))
    try:
        assert (room._fitting({"CPU": 1}, at(condition)) > 0) is there
        assert held.granted(20 if there else 0.5) is there
    finally:
        held.release()


def test_room_on_other_nodes_is_no_room_and_the_labels_are_named(local_ray: None) -> None:
    room.wait_for_node({"CPU": 4}, "extract", at("tests"), "keys")
    with pytest.raises(RuntimeError) as caught:
        room.wait_for_node({"CPU": 1}, "extract", at("spot"), "keys")
    assert str(caught.value).startswith(
        "extract needs 1 CPU on one node labelled group=spot (cluster.labels.extract); there is no such node. Nothing"
    )
    with pytest.raises(RuntimeError, match=r"needs 3 workers with 2 CPUs each, on nodes labelled group=tests .* for 2"):
        room.wait_for_workers({"CPU": 2}, 3, "extract", at("tests"), "keys")


def test_each_step_asks_for_its_own_labels(local_ray: None, tiny_llama: Path, tmp_path: Path) -> None:
    labels = LabelsConfig(extract={"group": "a"}, train={"group": "b"}, engines={"group": "c"})
    session = Session(ClusterConfig(wait_s=0, labels=labels))
    spec = EngineSpec(str(tiny_llama), EngineConfig(kind=EngineKind.fake, num_gpus=0, num_cpus=1))
    work = Job("prompts.parquet", str(tmp_path), ((0, 1),), Sampling(1), keep_truncated=True, max_model_len=99)
    with pytest.raises(RuntimeError, match=r"group=a \(cluster\.labels\.extract\)"):
        list(session.run_shards(spec, work, [0], ExtractConfig(), "extract"))
    cfg = TrainConfig(epochs=1, lr=1e-3)
    job = TrainJob(cfg, TINY_DRAFT, read_verifier(tiny_llama), (), frozenset(), frozenset(), str(tmp_path))
    with pytest.raises(RuntimeError, match=r"group=b \(cluster\.labels\.train\)"):
        session.fit(job)
    with pytest.raises(RuntimeError, match=r"group=c \(cluster\.labels\.engines\)"), session(spec, "draft"):
        pass
    session.close()
