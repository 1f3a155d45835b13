"""One driver at a time on an output root: a lease file with a heartbeat (no ray).

`<root>/.lease` says who holds it. It is created by link(2), which only one driver wins, on network file systems too,
and its mtime is the heartbeat. It counts as stale when the beat stops, or when its process on this host is gone.
"""

import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from workflows.errors import ConfigError

log = logging.getLogger(__name__)
LEASE = ".lease"
BEAT = 20.0  # seconds
STALE = 120.0  # seconds without a beat


class Lease:
    """A held lease; `check` raises when somebody has taken it from us."""

    def __init__(self, file: Path, content: str) -> None:
        self.file, self.content = file, content

    @property
    def token(self) -> str:
        """Of this lease and no other."""
        return _token(self.content)

    def check(self) -> None:
        if _read(self.file) != self.content:
            raise RuntimeError(
                f"{self.file} was taken by another driver: {_holder(_read(self.file))}. This one stops, so that the "
                "two do not write the same files; run the command again when the other has finished."
            )

    def beat(self) -> None:
        if _read(self.file) == self.content:
            os.utime(self.file)

    def release(self) -> None:
        if _read(self.file) == self.content:
            self.file.unlink()


@contextmanager
def lease(root: Path, *, beat: float = BEAT) -> Iterator[Lease]:
    """Hold the output root, or ConfigError that says who does."""
    held = _acquire(root)
    over = threading.Event()

    def keep() -> None:
        while not over.wait(beat):
            try:
                held.beat()
            except OSError as error:  # a file system that stutters; the next beat tries again, `check` finds a loss
                log.warning("cannot refresh %s: %s", held.file, error)

    thread = threading.Thread(target=keep, name="eyrie-lease", daemon=True)
    thread.start()
    try:
        yield held
    finally:
        over.set()
        thread.join()
        held.release()


@dataclass(frozen=True)
class Holder:
    """Who works on an output root, in words, and the token of the lease."""

    words: str
    token: str


def holder(root: Path) -> Holder | None:
    """Who works on the output root; None when nobody does, or who did is gone."""
    file = root / LEASE
    content = _read(file)
    if not content:
        return None
    try:
        stale = time.time() - file.stat().st_mtime >= STALE
    except FileNotFoundError:  # released between the two looks
        return None
    return None if stale or _process_is_gone(content) else Holder(_holder(content), _token(content))


def _acquire(root: Path) -> Lease:
    file, token = root / LEASE, uuid.uuid4().hex
    who = {"host": socket.gethostname(), "pids": _pid_namespace(), "pid": os.getpid()}
    content = json.dumps({**who, "time": datetime.now(UTC).isoformat(timespec="seconds"), "token": token})
    mine = root / f".tmp-lease-{token}"
    mine.write_text(content)
    try:
        for _ in range(2):
            try:
                os.link(mine, file)
                return Lease(file, content)
            except FileExistsError:
                _take_away_if_stale(file, now=mine.stat().st_mtime, aside=root / f".tmp-stale-{token}")
        raise ConfigError(_refusal(root, _read(file)))
    finally:
        mine.unlink(missing_ok=True)


def _take_away_if_stale(file: Path, *, now: float, aside: Path) -> None:
    """Remove a dead driver's lease. `now` is the file server's clock, which our host's may not agree with."""
    try:
        beat_at, content = file.stat().st_mtime, file.read_text()
    except FileNotFoundError:
        return
    if now - beat_at < STALE and not _process_is_gone(content):
        raise ConfigError(_refusal(file.parent, content))
    try:
        os.rename(file, aside)
    except FileNotFoundError:
        return
    if aside.read_text() != content:  # between our look and our rename another driver took over: give it back
        os.link(aside, file)
        aside.unlink()
        raise ConfigError(_refusal(file.parent, _read(file)))
    aside.unlink()
    log.info("took over the output root from a driver that is gone: %s", _holder(content))


def _process_is_gone(content: str) -> bool:
    try:
        who = json.loads(content)
        if (who["host"], who["pids"]) != (socket.gethostname(), _pid_namespace()):
            return False
        os.kill(who["pid"], 0)
    except ProcessLookupError:
        return True
    except (json.JSONDecodeError, KeyError, TypeError, PermissionError):
        return False  # damaged, so only its age counts; or alive under another user
    return False


def _refusal(root: Path, content: str) -> str:
    return (
        f"output_root: {root} is in use by another driver: {_holder(content)}. Wait for it or stop it, or give another "
        f"output_root. If it died on another host, {root / LEASE} is ignored {STALE:.0f} s after its last sign of life."
    )


def _holder(content: str) -> str:
    try:
        who = json.loads(content)
        return f"process {who['pid']} on {who['host']} since {who['time']}"
    except (json.JSONDecodeError, KeyError, TypeError):
        return "unknown (no lease, or a damaged one)"


def _token(content: str) -> str:
    """Empty when the lease is damaged."""
    try:
        return json.loads(content)["token"]
    except (json.JSONDecodeError, KeyError, TypeError):
        return ""


def _read(file: Path) -> str:
    """Content of the lease; empty when there is none."""
    try:
        return file.read_text()
    except FileNotFoundError:
        return ""


def _pid_namespace() -> str:
    """Containers of one host name may count their processes apart."""
    namespace = Path("/proc/self/ns/pid")
    return os.readlink(namespace) if namespace.is_symlink() else ""
