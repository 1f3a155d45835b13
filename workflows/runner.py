"""Runs steps in order: skip what is done, resume what is not, say why (no ray).

A step is done when its directory holds a record with its fingerprint. A step that fails leaves its directory without
one, and the next run calls it again on the same directory.
"""

import logging
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

from actors.full_disk import FULL, told
from workflows.artifact import Record, explain_difference, latest_record, read_record, write_record
from workflows.errors import ConfigError
from workflows.fingerprint import identity
from workflows.lease import Lease, lease
from workflows.progress import duration
from workflows.provenance import provenance
from workflows.step import Step

log = logging.getLogger(__name__)
MIN_FREE = 1 << 30  # bytes
MAX_REASONS = 4  # differences named in one line


@dataclass(frozen=True)
class Planned:
    """A step and whether it is done; `why` it is to run when not."""

    step: Step
    record: Record | None
    why: str

    def line(self) -> str:
        if self.record:
            then = self.record.provenance.get("time", "an unknown time")
            return f"{self.step.name:<10} {self.step.short}  done before (record of {then}), skipped"
        return f"{self.step.name:<10} {self.step.short}  runs: {self.why}"


def run(steps: Iterable[Step], root: Path, *, dry_run: bool = False, min_free: int = MIN_FREE) -> dict[str, Record]:
    """Bring every step and what it needs to done; their records by name. `dry_run` prints the plan, writes nothing."""
    order = in_order(steps)
    if dry_run:
        planned = [plan(step, root) for step in order]
        for entry in planned:
            print(entry.line().replace(", skipped", ""))
        return {entry.step.name: entry.record for entry in planned if entry.record}
    check_root(root, min_free)
    records = {}
    with lease(root) as held:
        for step in order:
            entry = plan(step, root)  # now, under the lease: another driver may have finished it meanwhile
            log.info(entry.line())
            if entry.record is None:
                _run_one(step, root, held)
                entry = plan(step, root)
                assert entry.record, f"{step.name}: no record after it ran"
            records[step.name] = entry.record
    return records


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


def _run_one(step: Step, root: Path, held: Lease) -> None:
    out = step.out(root)
    out.mkdir(parents=True, exist_ok=True)
    resumed = any(out.iterdir())  # then `seconds` is not all the time that the step took
    began = time.monotonic()
    try:
        accounting = step.run({dep.name: dep.out(root) for dep in step.deps}, out)
    except BaseException as error:
        took = duration(time.monotonic() - began)
        log.error("%s stopped after %s: %r. The same command resumes it in %s", step.name, took, error, out)
        full = isinstance(error, OSError) and error.errno in FULL
        if said := told(error) or (str(error) if full else None):
            raise ConfigError(
                f"output_root: no room left below {root} ({said}). Make room, and run the same command again: it "
                f"resumes {step.name}."
            ) from error
        raise
    seconds = time.monotonic() - began
    assert isinstance(accounting, dict), f"{step.name} returned {type(accounting).__name__}, not its accounting"
    held.check()
    origin = {**provenance(), "resumed": resumed}
    config = identity(step.config)
    write_record(out, Record(step.name, step.fingerprint, config, step.all_inputs, origin, accounting, seconds))
    log.info("%-10s %s  done in %s", step.name, step.short, duration(seconds))


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
