"""A Ray head as an operator starts one: `ray start --head`, with a dashboard and a token, in a process of the tests."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

RAY = (sys.executable, "-m", "ray.scripts.scripts")
TOKEN = "a-token-of-the-tests-0123456789abcdef"
START_S = 90


@dataclass(frozen=True)
class Head:
    """`address` is the dashboard's; `gcs` is what nodes join by; `env` lets a process in."""

    address: str
    gcs: str
    env: dict[str, str]
    temp: Path
    metrics_port: int


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def ray_head(*, cpus: int = 4, env: dict[str, str] | None = None) -> Iterator[Head]:
    """A cluster of one node, gone at the end of the block."""
    temp = Path(tempfile.mkdtemp(prefix="eyrie-"))  # short: Ray's sockets lie below it
    gcs, dashboard, metrics = free_port(), free_port(), free_port()
    environment = os.environ | {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": TOKEN,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),  # `python` of a job
        **(env or {}),
    }
    environment.pop("PYTHONPATH", None)  # a job has what it uploads, and nothing of this folder
    command = [
        *(*RAY, "start", "--head", "--block", "--node-ip-address=127.0.0.1", f"--port={gcs}", f"--num-cpus={cpus}"),
        *(f"--dashboard-port={dashboard}", "--dashboard-host=127.0.0.1", f"--metrics-export-port={metrics}"),
        f"--dashboard-agent-listen-port={free_port()}",  # of jobs; the usual one may be taken
        *("--object-store-memory=200000000", f"--temp-dir={temp}", "--disable-usage-stats"),
    ]
    log = temp / "head.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
    try:
        head = Head(f"http://127.0.0.1:{dashboard}", f"127.0.0.1:{gcs}", environment, temp, metrics)
        _await(head, process, log)
        yield head
    finally:
        process.terminate()
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(temp, ignore_errors=True)


def _await(head: Head, process: subprocess.Popen, log: Path) -> None:
    """Until the job server answers."""
    deadline = time.monotonic() + START_S
    probe = [*RAY, "job", "list", "--address", head.address]
    while True:
        assert process.poll() is None, f"the head ended:\n{log.read_text()}"
        if subprocess.run(probe, env=head.env, capture_output=True, timeout=START_S).returncode == 0:
            return
        assert time.monotonic() < deadline, f"no head after {START_S} s:\n{log.read_text()}"
        time.sleep(0.5)
