"""Runs steps in order: skip what is done, resume what is not, say why (no ray).

A step is done when its directory holds a record with its fingerprint. A step that fails leaves its directory without
one, and the next run calls it again on the same directory.
"""

import contextlib
import logging
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

from actors import step_progress
from actors.full_disk import FULL, told
from workflows.artifact import Record, explain_difference, latest_record, read_record, write_record
from workflows.errors import ConfigError
from workflows.fingerprint import identity
from workflows.lease import Lease, lease
from workflows.progress import duration, noted_in
from workflows.provenance import provenance
from workflows.run_state import DONE, FAILED, RUNNING, STOPPED, Account, Observer
from workflows.step import Step
from workflows.tables import aligned

log = logging.getLogger(__name__)
MIN_FREE = 1 << 30  # bytes
MAX_REASONS = 4  # differences named in one line


@dataclass(frozen=True)
class Planned:
    """A step and whether it is done; `why` it is to run when not."""

    step: Step
    record: Record | None
    why: str

    def when(self) -> str:
        """Of a step that is done: since when."""
        assert self.record
        return f"record of {self.record.provenance.get('time', 'an unknown time')}"

    def line(self) -> str:
        if self.record:
            return f"{self.step.name:<10} {self.step.short}  done before ({self.when()}), skipped"
        return f"{self.step.name:<10} {self.step.short}  runs: {self.why}"


def run(
    steps: Iterable[Step],
    root: Path,
    *,
    name: str = "run",
    min_free: int = MIN_FREE,
    observe: Observer = lambda *_: None,
) -> dict[str, Record]:
    """Bring every step and what it needs to done; their records by name. `observe` hears of each step's state."""
    order = in_order(steps)
    check_root(root, min_free)
    records = {}
    with _a_full_disk_said(root), lease(root) as held:
        account = Account(run_folder(root, name, order[-1]), name, held.token, order, observe)
        for step in order:
            entry = plan(step, root)  # now, under the lease: another driver may have finished it meanwhile
            log.info(entry.line())
            if entry.record is None:
                _run_one(step, root, held, account)
                entry = plan(step, root)
                assert entry.record, f"{step.name}: no record after it ran"
            account.set(step.name, DONE, entry.when())
            records[step.name] = entry.record
    return records


def run_folder(root: Path, name: str, last: Step) -> Path:
    """Where a run leaves its state and its report; `last` is its last step."""
    return root / "runs" / f"{name}-{last.short}"


def print_plan(steps: Iterable[Step], root: Path) -> dict[str, Record]:
    """The DAG with what is done, what would run, and why; writes nothing."""
    planned = [plan(step, root) for step in in_order(steps)]
    rows = [
        [
            entry.step.name,
            entry.step.short,
            ", ".join(dep.name for dep in entry.step.deps),
            *(("done", entry.when()) if entry.record else ("to run", entry.why)),
        ]
        for entry in planned
    ]
    print(aligned(["step", "fingerprint", "needs", "state", "why"], rows))
    return {entry.step.name: entry.record for entry in planned if entry.record}


def in_order(steps: Iterable[Step]) -> list[Step]:
    """The steps and everything they need, each after what it needs."""
    sorter: TopologicalSorter[Step] = TopologicalSorter()
    todo, seen = list(steps), set()
    while todo:
        step = todo.pop(0)
        if step not in seen:
            seen.add(step)
            sorter.add(step, *step.deps)
            todo += step.deps
    order = list(sorter.static_order())
    names = [step.name for step in order]
    assert len(names) == len(set(names)), f"two steps of one name: {names}"
    return order


def plan(step: Step, root: Path) -> Planned:
    """Is it done, and if not, why not."""
    out = step.out(root)
    record = read_record(out)
    if record and record.fingerprint != step.fingerprint:
        raise ConfigError(
            f"output_root: {out} holds the record of {record.step} {record.fingerprint}, not of {step.name} "
            f"{step.fingerprint}. Move that directory away and run again."
        )
    if record:
        return Planned(step, record, "")
    if out.is_dir() and any(out.iterdir()):
        return Planned(step, None, "unfinished, resumes where it stopped")
    return Planned(step, None, _reason(step, root))


def _reason(step: Step, root: Path) -> str:
    old = latest_record(root / step.name)
    if old is None:
        return "never finished here"
    reasons = explain_difference(old, step.config, step.all_inputs)
    more = f" and {len(reasons) - MAX_REASONS} more" if len(reasons) > MAX_REASONS else ""
    return "; ".join(reasons[:MAX_REASONS]) + more


def _run_one(step: Step, root: Path, held: Lease, account: Account) -> None:
    out = step.out(root)
    out.mkdir(parents=True, exist_ok=True)
    resumed = any(out.iterdir())  # then `seconds` is not all the time that the step took
    began = time.monotonic()
    step_progress.forget(out)
    account.set(step.name, RUNNING)
    try:
        with noted_in(out):
            accounting = step.run({dep.name: dep.out(root) for dep in step.deps}, out)
        assert isinstance(accounting, dict), f"{step.name} returned {type(accounting).__name__}, not its accounting"
        held.check()
        seconds = time.monotonic() - began
        origin = {**provenance(), "resumed": resumed}
        config = identity(step.config)
        write_record(out, Record(step.name, step.fingerprint, config, step.all_inputs, origin, accounting, seconds))
    except BaseException as error:
        asked = isinstance(error, SystemExit | KeyboardInterrupt)
        with contextlib.suppress(OSError):  # the disk may be full, which is then what must be said
            account.set(step.name, STOPPED if asked else FAILED, "" if asked else str(error))
        took = duration(time.monotonic() - began)
        log.error("%s stopped after %s: %r. The same command resumes it in %s", step.name, took, error, out)
        raise
    log.info("%-10s %s  done in %s", step.name, step.short, duration(seconds))


@contextlib.contextmanager
def _a_full_disk_said(root: Path) -> Iterator[None]:
    """Whoever met it, a worker or the driver at its own files."""
    try:
        yield
    except BaseException as error:
        full = isinstance(error, OSError) and error.errno in FULL
        if said := told(error) or (str(error) if full else None):
            raise ConfigError(
                f"output_root: no room left below {root} ({said}). Make room, and run the same command again: it "
                "goes on where it stopped."
            ) from error
        raise


def check_root(root: Path, min_free: int = MIN_FREE) -> None:
    """ConfigError when nothing can be written there."""
    probe = root / ".tmp-probe"
    try:
        root.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(
            f"output_root: cannot write to {root} ({error}). Give a directory that this user may write, on a file "
            "system that every node of the cluster shares."
        ) from None
    free = shutil.disk_usage(root).free
    if free < min_free:
        raise ConfigError(
            f"output_root: {free / 2**30:.1f} GiB free under {root}, less than {min_free / 2**30:.1f}. Make room, or "
            "give an output_root on a larger disk."
        )
