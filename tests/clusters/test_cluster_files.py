"""cluster.yaml and its likes: what the launchers accept, and what Eyrie asks of the clusters that they make."""

import copy
import json
import shlex
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from actors.node_labels import fits
from conf.schema import EyrieConfig
from tests.composed import typed
from workflows import submit

ROOT = Path(__file__).resolve().parents[2]
# Ray's validator lets any key of `provider` through; these are what its providers read (ray/autoscaler/_private/).
PROVIDER_KEYS = {
    "aws": {
        *("type", "region", "availability_zone", "cache_stopped_nodes", "use_internal_ips", "security_group"),
        *("aws_credentials", "subnet_mask", "cloudwatch", "key_pair"),
    },
    "local": {"type", "head_ip", "worker_ips", "coordinator_address", "external_head_ip"},
}
LAUNCHED = ("cluster.yaml", "docs/on_premise.yaml")


def read(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / name).read_text())


def check(config: dict[str, Any]) -> None:
    validate_config(prepare_config(copy.deepcopy(config)))
    provider = config["provider"]
    unknown = set(provider) - PROVIDER_KEYS[provider["type"]]
    assert not unknown, f"provider: {unknown} is nothing that Ray reads"


def kimi() -> EyrieConfig:
    return typed("experiment=kimi_k25", "cluster=groups", "output_root=/shared/eyrie")


@pytest.mark.parametrize("name", LAUNCHED)
def test_the_launcher_accepts_it(name: str) -> None:
    check(read(name))


def test_a_slip_in_cluster_yaml_would_be_seen() -> None:
    for slip in (
        lambda config: config["provider"].update(regoin="x"),
        lambda config: config.update(max_worker=3),
        lambda config: config["available_node_types"]["train"].update(label={}),
        lambda config: config["available_node_types"]["extract"]["labels"].update(group=3),
        lambda config: config.update(head_node_type="heads"),
    ):
        config = read("cluster.yaml")
        slip(config)
        with pytest.raises((AssertionError, jsonschema.ValidationError, ValueError)):
            check(config)


def groups() -> dict[str, tuple[dict[str, str], dict[str, float]]]:
    """Labels and resources of the node groups of cluster.yaml and docs/rayjob.yaml."""
    types = read("cluster.yaml")["available_node_types"]
    found = {f"cluster.yaml {name}": (kind["labels"], kind["resources"]) for name, kind in types.items()}
    for group in read("docs/rayjob.yaml")["spec"]["rayClusterSpec"]["workerGroupSpecs"]:
        limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        room = {"CPU": float(limits["cpu"]), "GPU": float(limits["nvidia.com/gpu"])}
        found[f"rayjob {group['groupName']}"] = (group["labels"], room)
    return found


@pytest.mark.parametrize("file", ["cluster.yaml", "rayjob"])
def test_each_step_of_kimi_finds_its_group_there_and_fits_one_node_of_it(file: str) -> None:
    cfg = kimi()
    engine = {"CPU": cfg.engine.num_cpus, "GPU": cfg.engine.num_gpus}
    trainers = {"CPU": cfg.train.num_workers * cfg.train.num_cpus_per_worker, "GPU": cfg.train.num_workers}
    for work, need in (("extract", engine), ("engines", engine), ("train", trainers)):
        selector = getattr(cfg.cluster.labels, work)
        rooms = [room for name, (labels, room) in groups().items() if name.startswith(file) and fits(selector, labels)]
        assert rooms, f"no group of {file} is labelled {selector}"
        assert all(room[kind] >= amount for room in rooms for kind, amount in need.items()), (work, rooms)


def test_nothing_is_placed_on_a_head() -> None:
    cluster = read("cluster.yaml")
    assert cluster["available_node_types"][cluster["head_node_type"]]["resources"] == {"CPU": 0, "GPU": 0}
    head = read("docs/rayjob.yaml")["spec"]["rayClusterSpec"]["headGroupSpec"]
    assert (head["rayStartParams"]["num-cpus"], head["rayStartParams"]["num-gpus"]) == ("0", "0")
    assert "--num-cpus=0 --num-gpus=0" in read("docs/on_premise.yaml")["head_start_ray_commands"][-1]


def test_spot_nodes_only_extract() -> None:
    types = read("cluster.yaml")["available_node_types"]
    spot = [name for name, kind in types.items() if "InstanceMarketOptions" in kind["node_config"]]
    assert spot == ["extract"]


def test_the_cluster_runs_the_ray_of_the_lock() -> None:
    ray = version("ray")
    cluster = read("cluster.yaml")["docker"]
    assert f":{ray}-py311" in cluster["image"] and f":{ray}-py311" in cluster["head_image"]
    assert read("docs/rayjob.yaml")["spec"]["rayClusterSpec"]["rayVersion"] == ray
    assert f"ray=={ray}\n" in (ROOT / "requirements/gpu.txt").read_text()


def test_the_rayjob_is_what_kuberay_accepts() -> None:
    schema = json.loads((Path(__file__).parent / "rayjob_v1.json").read_text())
    job = read("docs/rayjob.yaml")
    jsonschema.validate(job, schema)
    job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["maxReplica"] = 3
    with pytest.raises(jsonschema.ValidationError, match="maxReplica"):
        jsonschema.validate(job, schema)


def test_the_rayjob_runs_a_configuration_that_is_valid() -> None:
    spec = read("docs/rayjob.yaml")["spec"]
    words = shlex.split(spec["entrypoint"])
    assert words[:3] == ["python", "-m", "workflows.eagle3"]
    cfg = submit.read(words[3:])
    grace = yaml.safe_load(spec["runtimeEnvYAML"])["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"]
    assert float(grace) > cfg.cluster.stop_grace_s
