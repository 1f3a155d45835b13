"""A driver in a process of its own, as a job is: told to scale, and told to stop, while it extracts."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from actors.shards import read_samples
from tests.tiny_run import overrides
from workflows.scale import main as scale

SLOW = "+engine.extra.seconds_per_token=0.02"  # 40 tokens a conversation


def wait_for(what: str, ready: Callable[[], bool], driver: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + 90
    while not ready():
        assert driver.poll() is None, f"the driver ended before {what}:\n{log.read_text()}"
        assert time.monotonic() < deadline, f"no {what} in time:\n{log.read_text()}"
        time.sleep(0.1)


def test_it_takes_another_worker_and_stops_with_what_was_in_flight_committed(tiny_llama: Path, tmp_path: Path) -> None:
    root, log = tmp_path / "root", tmp_path / "log"
    given = overrides(tmp_path, tiny_llama, SLOW, "extract.samples_per_shard=1", "extract.shards_in_flight=1")
    with log.open("wb") as out:
        driver = subprocess.Popen([sys.executable, "-m", "workflows.eagle3", *given], stdout=out, stderr=out)
    try:
        wait_for("first shard", lambda: any(root.glob("extract/*/part-*.parquet")), driver, log)
        assert scale([str(root), "workers=2"]) == 0
        wait_for("second worker", lambda: "2 workers" in log.read_text(), driver, log)
        driver.send_signal(signal.SIGTERM)
        assert driver.wait(60) == 128 + signal.SIGTERM
    finally:
        if driver.poll() is None:
            os.kill(driver.pid, signal.SIGKILL)
            driver.wait()
    said = log.read_text()
    assert "SIGTERM: no new shards; those in flight get 60 s (cluster.stop_grace_s)" in said
    assert "stopped as asked; the same command goes on from here" in said
    assert re.search(r"extract stopped after .* The same command resumes it", said)

    (folder,) = root.glob("extract/*")
    shards = sorted(folder.glob("part-*.parquet"))
    assert 1 <= len(shards) < 18 and all(read_samples(shard) for shard in shards)
    assert {file.stem for file in shards} == {file.stem for file in folder.glob("part-*.json")}
    assert not list(folder.glob(".tmp-*")) and not (folder / "workers").exists() and not (root / ".lease").exists()
