"""Metrics on Ray's own endpoint: what a run counts, and gauges that stay while they are shown."""

import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from tests.head import ray_head

PROGRAM = """
import os, time
import ray
from actors.engine import Completion
from actors.metrics import Metrics
os.environ["EYRIE_RUN"] = "nest"

@ray.remote
class Worker:
    def __init__(self):
        self.metrics = Metrics("extract", "3")
        self.metrics.show("engine_busy_share", lambda: 0.75)
    def work(self):
        self.metrics.completed(Completion([1, 2, 3], [4, 5], "stop"))

before = Metrics("prompts")
before.set("step_state", 2)  # no Ray runs yet: it is told later
ray.init(address=os.environ["GCS"], logging_level="ERROR", runtime_env={"env_vars": {"EYRIE_RUN": "nest"}})
worker = Worker.remote()
ray.get([worker.work.remote() for _ in range(5)])
Metrics("extract").count("shards_done", 2)
Metrics("extract").count("shards_failed", 0)
time.sleep(45)
print("ready", flush=True)
time.sleep(60)
"""


def scraped(port: int) -> dict[str, float]:
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    found = {}
    for line in text.splitlines():
        if line.startswith("ray_eyrie_") and (matched := re.match(r"(\w+)\{(.*)\} (\S+)", line)):
            tags = dict(re.findall(r'(\w+)="([^"]*)"', matched[2]))
            found["/".join([matched[1], tags["run"], tags["step"], tags["worker"]])] = float(matched[3])
    return found


def test_counters_and_gauges_reach_rays_endpoint_and_stay(tmp_path: Path) -> None:
    with ray_head() as head:
        program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], env=head.env | {"GCS": head.gcs}, stdout=subprocess.PIPE, text=True
        )
        try:
            assert program.stdout and program.stdout.readline() == "ready\n"  # 45 s: twice what a gauge lives for
            deadline = time.monotonic() + 20
            wanted = {
                "ray_eyrie_tokens_read_total/nest/extract/3": 15,
                "ray_eyrie_tokens_generated_total/nest/extract/3": 10,
                "ray_eyrie_engine_busy_share/nest/extract/3": 0.75,
                "ray_eyrie_shards_done_total/nest/extract/": 2,
                "ray_eyrie_step_state/nest/prompts/": 2,
            }
            while (found := scraped(head.metrics_port)) != wanted and time.monotonic() < deadline:
                time.sleep(1)
            assert found == wanted
        finally:
            program.kill()
            program.wait()
