"""A job that runs on a cluster, seen from here: its log, once; Ctrl-C as a stop; the exit code of its driver."""

import asyncio
import signal
import sys
from typing import Any

POLL_S = 2.0
FAILED, STOPPED = 1, 128 + signal.SIGTERM  # of a job whose driver left no exit code


async def follow(client: Any, job: str, grace_s: float) -> None:
    """Print the job's log until it has ended. The connection may be lost: what was printed is not printed again."""
    loop, asked = asyncio.get_running_loop(), 0

    def interrupted() -> None:
        nonlocal asked
        asked += 1
        if asked > 1:
            watching.cancel()
            return
        print(f"\nstopping {job}: shards in flight get {grace_s:g} s; Ctrl-C again to leave it alone", file=sys.stderr)
        loop.run_in_executor(None, client.stop_job, job)

    watching = asyncio.ensure_future(_print_log(client, job))
    loop.add_signal_handler(signal.SIGINT, interrupted)
    try:
        await watching
    except asyncio.CancelledError:
        raise SystemExit(128 + signal.SIGINT) from None
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def exit_code(client: Any, job: str) -> int:
    """That of the driver; `ray job submit` itself returns 1 for all of them, and 0 for a job that was stopped."""
    info = client.get_job_info(job)
    if info.driver_exit_code is not None:
        return info.driver_exit_code if info.driver_exit_code >= 0 else 128 - info.driver_exit_code
    if info.status == "SUCCEEDED":
        return 0
    print(f"job {job}: {info.status}: {info.message}", file=sys.stderr)
    return STOPPED if info.status == "STOPPED" else FAILED


async def _print_log(client: Any, job: str) -> None:
    printed = 0
    while True:
        seen = 0
        try:
            async for text in client.tail_job_logs(job):
                _show(text[max(0, printed - seen) :])
                seen += len(text)
                printed = max(printed, seen)
        except (RuntimeError, OSError):  # the connection; the job is asked for below
            pass
        status = await asyncio.to_thread(client.get_job_status, job)
        if status.is_terminal():
            _show((await asyncio.to_thread(client.get_job_logs, job))[printed:])
            return
        await asyncio.sleep(POLL_S)


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
