"""One extraction under faults: a driver in a process of its own that is started again, like a job, until it is done."""

import hashlib
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.tiny_run import overrides

# SIGTERM outside of the extraction meets Ray's handler, which exits with 15, or the default one
ENDED = (-signal.SIGKILL, 128 + signal.SIGTERM, int(signal.SIGTERM), -signal.SIGTERM, -signal.SIGABRT)


class Run:
    """The command of one extraction, its output root, and its driver."""

    def __init__(self, folder: Path, verifier: Path, address: str, prompts: int, *more: str):
        folder.mkdir(parents=True)
        self.root = folder / "root"
        where = (f"cluster.address={address}", "cluster.wait_s=120")
        given = overrides(folder, verifier, *more, *where, prompts=prompts)
        self._command = [sys.executable, "-m", "tests.chaos.driver", *given]
        self._log = folder / "log"
        self._driver: subprocess.Popen | None = None
        self.starts = 0

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._driver = subprocess.Popen(self._command, stdout=log, stderr=log)
        self.starts += 1

    def end(self, how: signal.Signals) -> str | None:
        """Send a signal to the driver; it is started again by `keep_going`."""
        if self._driver is None or self._driver.poll() is not None:
            return None
        self._driver.send_signal(how)
        if how is signal.SIGKILL:
            self._driver.wait()
        return f"process {self._driver.pid}"

    def keep_going(self) -> bool:
        """Whether the extraction is done; a driver that was ended is started again. RuntimeError when one failed."""
        if self._driver is None:
            self.start()
        assert self._driver
        code = self._driver.poll()
        if code is None:
            return False
        if code == 0:
            return True
        if code in ENDED:
            self.start()
            return False
        raise RuntimeError(f"the driver ended with {code}:\n{self.said()}")

    def finish(self, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while not self.keep_going():
            if time.monotonic() > deadline:
                raise RuntimeError(f"not done after {limit_s:.0f} s without faults:\n{self.said()}")
            time.sleep(0.2)

    def close(self) -> None:
        if self._driver and self._driver.poll() is None:
            self._driver.kill()
            self._driver.wait()

    def shards(self) -> dict[str, str]:
        """Name and digest of every committed shard."""
        files = sorted(self.root.glob("extract/*/part-*.parquet"))
        return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}

    def committed(self) -> int:
        return len(list(self.root.glob("extract/*/part-*.parquet")))

    def said(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-60:])
