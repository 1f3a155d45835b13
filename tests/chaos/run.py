"""One run under faults: a driver in a process of its own that is started again, like a job, until it is done."""

import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.tiny_run import overrides

# SIGTERM before the driver has a Ray meets the default handler, and while it gets one, Ray's
ENDED = (-signal.SIGKILL, 128 + signal.SIGTERM, -signal.SIGTERM, int(signal.SIGTERM))


class Run:
    """A command up to the step `last`, its output root, and its driver. `more` may change between starts."""

    def __init__(self, folder: Path, verifier: Path, address: str, prompts: int, last: str, *given: str):
        folder.mkdir(parents=True, exist_ok=True)
        self.root, self.more, self.starts = folder / "root", list[str](), 0
        self.root.mkdir(exist_ok=True)
        where = (f"cluster.address={address}", "cluster.wait_s=120")
        self._command = [sys.executable, "-m", "tests.chaos.driver", last]
        self._command += overrides(folder, verifier, *given, *where, prompts=prompts)
        self.log = folder.parent / f"{folder.name}.log"
        self._driver: subprocess.Popen | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._driver = subprocess.Popen([*self._command, *self.more], stdout=log, stderr=log)
        self.starts += 1

    def end(self, how: signal.Signals) -> str | None:
        """Send a signal to the driver; it is started again by `keep_going`."""
        if self._driver is None or self._driver.poll() is not None:
            return None
        self._driver.send_signal(how)
        if how is signal.SIGKILL:
            self._driver.wait()
        return f"process {self._driver.pid}"

    def wait(self, limit_s: float) -> int | None:
        """Exit code of the driver, if it ends within the limit."""
        assert self._driver
        try:
            return self._driver.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None

    def keep_going(self) -> bool:
        """Whether the run is done; a driver that was ended is started again. RuntimeError when one failed."""
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

    def committed(self) -> int:
        return len(list(self.root.glob("extract/*/part-*.parquet")))

    def trained(self) -> int:
        """The furthest step that training reached."""
        files = list(self.root.glob("train/*/checkpoints/reached"))
        return int(files[0].read_text() or 0) if files else 0

    def said(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-60:])
