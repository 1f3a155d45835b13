"""Every panel of the Grafana dashboard, asked of a real Prometheus (Debian has it) that scraped a run."""

import json
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.head import free_port, ray_head
from tests.tiny_run import overrides
from workflows import dashboard

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SUBMIT = (sys.executable, "-m", "workflows.submit", "--address")
# Long enough for Ray to export what a process says of itself now: every ten seconds.
POISON = f"+engine.extra.die_on_token={3 + ord('~')}"  # in one prompt: shards fail, run again, and lose it
SLOWLY = ("+engine.extra.seconds_per_token=0.05", "extract.shards_in_flight=1")
ROOT = Path(__file__).resolve().parents[2]


def ask(port: int, path: str, **query: Any) -> Any:
    url = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
    return json.loads(urllib.request.urlopen(url, timeout=30).read())["data"]


@pytest.mark.skipif(not shutil.which("prometheus"), reason="no prometheus on this machine")
def test_every_panels_query_returns_data(tiny_llama: Path, tmp_path: Path) -> None:
    boards = tmp_path / "boards"
    dashboard.main([str(boards)])
    port = free_port()
    with ray_head(cpus=8, env={"RAY_METRICS_GRAFANA_DASHBOARD_OUTPUT_DIR": str(boards)}) as head:
        found = {file.name for file in boards.iterdir()}
        assert dashboard.FILE in found and "default_grafana_dashboard.json" in found  # Ray's own lie beside it
        config = tmp_path / "prometheus.yml"
        target = f"127.0.0.1:{head.metrics_port}"
        scrape = {"job_name": "ray", "scrape_interval": "2s", "static_configs": [{"targets": [target]}]}
        config.write_text(json.dumps({"scrape_configs": [scrape]}))  # which is YAML too
        command = [
            *("prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'tsdb'}"),
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        with (tmp_path / "prometheus.log").open("wb") as log:
            prometheus = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            began = time.time()
            given = overrides(
                tmp_path, tiny_llama, "name=nest", "train.epochs=8", *SLOWLY, POISON, "extract.max_lost_fraction=0.1"
            )
            prompts = tmp_path / "mine.jsonl"
            prompts.write_text(prompts.read_text().replace("number 7:", "number 7~:"))
            for mode in ("two_pass", "fused"):  # in one the engines write in `generate`, in the other in `extract`
                run = subprocess.run(
                    [*SUBMIT, head.address, *given, f"extract.mode={mode}"],
                    env=head.env,
                    cwd=ROOT,
                    capture_output=True,
                    text=True,
                    timeout=300,
                )
                assert run.returncode == 0, run.stdout + run.stderr
            time.sleep(15)  # the last export, and a scrape of it
            empty = []
            for panel in dashboard.dashboard()["panels"]:
                for query in panel.get("targets", []):
                    expr = query["expr"].replace("$__rate_interval", "30s").replace("$run", "nest")
                    expr = expr.removesuffix(" or vector(0)")  # of faults: here there are some
                    series = ask(port, "query_range", query=expr, start=began, end=time.time(), step=2)["result"]
                    if not any(value for one in series for _, value in one["values"]):
                        empty.append((panel["title"], expr))
            assert empty == []
            assert ask(port, "label/run/values") == ["nest"]
        finally:
            prometheus.terminate()
            prometheus.wait(30)
