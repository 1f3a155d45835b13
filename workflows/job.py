"""What a submitted job is made of: its command, its environment, and what it is called (pure)."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conf.schema import EyrieConfig
from workflows.provenance import git_state

ROOT = Path(__file__).resolve().parents[1]
FORWARDED = ("EYRIE_OUTPUT_ROOT",)  # read by conf/; the job's own environment is another machine's
# Ray kills a stopped job after this many seconds; the driver's own grace must be over by then
STOP_WAIT = "RAY_JOB_STOP_WAIT_TIME_S"
SPARE_S = 30.0  # for the driver to leave after its grace


def entrypoint(overrides: Sequence[str]) -> str:
    """The shell command that runs Eyrie with these overrides, each as it was typed."""
    return shlex.join(["python", "-m", "workflows.eagle3", *overrides])


def metadata(cfg: EyrieConfig) -> dict[str, str]:
    """What the dashboard and `ray job list` show of it."""
    return {"eyrie": cfg.name, "output_root": cfg.output_root, "git_sha": revision()}


def runtime_env(cfg: EyrieConfig) -> dict[str, Any]:
    """The code as it lies here, unless Eyrie is installed as a package, and what the driver must be told."""
    variables = {
        "GIT_SHA": revision(),
        STOP_WAIT: f"{cfg.cluster.stop_grace_s + SPARE_S:g}",
        **{name: os.environ[name] for name in FORWARDED if name in os.environ},
    }
    source = {"working_dir": str(ROOT)} if (ROOT / "pyproject.toml").is_file() else {}
    return {**source, "env_vars": variables}


def revision() -> str:
    """The commit of this code, marked when files differ from it."""
    sha, dirty = git_state()
    return f"{sha}-dirty" if dirty else sha
