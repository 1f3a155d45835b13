"""Regenerates requirements/cpu.txt and requirements/gpu.txt from pyproject.toml with pip's own resolver (`make lock`).

Nothing is installed: pip says in a report what it would install, and a report is rendered into a lock. The CPU lock is
the resolution less the packages that pyproject leaves out, plus the data wheels that go without their dependencies; so
`pip check` has findings in that environment, and every one must have its reason here, or no lock is written.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HERE = Path(__file__).resolve().parent
PYPROJECT = HERE.parent / "pyproject.toml"
LOCAL_PIP_SETTINGS = ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT", "PIP_NO_INDEX")
Report = dict[str, Any]  # pip's installation report


@dataclass(frozen=True)
class Project:
    """What pyproject.toml says about packages. `left_out`: canonical name -> reason."""

    dependencies: list[str]
    extras: dict[str, list[str]]
    data_only: list[str]
    data_only_reason: str
    left_out: dict[str, str]

    @classmethod
    def read(cls, path: Path = PYPROJECT) -> "Project":
        toml = tomllib.loads(path.read_text())
        project, lock = toml["project"], toml["tool"]["eyrie"]["lock"]
        return cls(
            dependencies=project["dependencies"],
            extras=project["optional-dependencies"],
            data_only=lock["data-only"],
            data_only_reason=lock["data-only-reason"],
            left_out=lock["left-out"],
        )

    def requirements(self, *extras: str) -> list[str]:
        return [*self.dependencies, *(r for e in extras for r in self.extras[e])]


def pip_report(requirements: list[str], *options: str, plain_index: bool = False) -> Report:
    """What pip would install into an empty environment; `plain_index` ignores this machine's own wheels and indexes."""
    env = dict(os.environ)
    if plain_index:
        env = {k: v for k, v in env.items() if k not in LOCAL_PIP_SETTINGS} | {"PIP_CONFIG_FILE": os.devnull}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
        subprocess.run([*command, "--report", str(out), *options, *requirements], env=env, check=True)
        return json.loads(out.read_text())


def resolve_cpu(project: Project, torch_index: str) -> Report:
    """torch as its +cpu build: from wherever pip finds it, else from `torch_index`."""
    wanted = project.requirements("cpu", "demo", "dev")
    cpu = [f"{r}+cpu" if Requirement(r).name == "torch" else r for r in wanted]
    torch = [r for r in cpu if Requirement(r).name == "torch"]
    try:
        pip_report(torch, "--no-deps")
    except subprocess.CalledProcessError:
        return pip_report(cpu, "--extra-index-url", torch_index)
    return pip_report(cpu)


def pins(report: Report) -> dict[str, str]:
    """Canonical name -> `name==version`."""
    metadata = [item["metadata"] for item in report["install"]]
    return {canonicalize_name(m["name"]): f"{m['name']}=={m['version']}" for m in metadata}


def findings(reports: list[Report], locked: dict[str, str], project: Project) -> dict[str, list[str]]:
    """Reason -> the lines that `pip check` prints for it once exactly `locked` is installed."""
    found: dict[str, list[str]] = {}
    data_only = {canonicalize_name(Requirement(r).name) for r in project.data_only}
    for report in reports:
        environment = report["environment"] | {"extra": ""}
        for meta in (item["metadata"] for item in report["install"]):
            owner = canonicalize_name(meta["name"])
            for need in (Requirement(r) for r in meta.get("requires_dist", []) if owner in locked):
                if need.marker is not None and not need.marker.evaluate(environment):
                    continue
                name = canonicalize_name(need.name)
                have = locked.get(name, "").partition("==")[2]
                if have and need.specifier.contains(have, prereleases=True):
                    continue
                line = f"{owner} {meta['version']} requires {name}, which is not installed."
                if have:
                    line = f"{owner} {meta['version']} has requirement {need}, but you have {name} {have}."
                if owner in data_only:
                    reason = f"installed without dependencies: {project.data_only_reason}"
                elif not have and name in project.left_out:
                    reason = f"{name} is left out: {project.left_out[name]}"
                else:
                    raise ValueError(f"{line} Give the reason in pyproject.toml [tool.eyrie.lock], or other versions.")
                found.setdefault(reason, []).append(line)
    return found


def made_by(report: Report) -> list[str]:
    env = report["environment"]
    machine = f"{env['platform_system']} {env['platform_machine']}"
    python = f"{env['implementation_name']} {env['python_version']}"
    return [
        f"# For {machine}, {python}.",
        f"# Made by `make lock` from pyproject.toml with pip {report['pip_version']}: edit that, not this.",
    ]


def render_cpu(report: Report, data_report: Report, project: Project) -> str:
    resolved = {name: pin for name, pin in pins(report).items() if name not in project.left_out}
    locked = resolved | {canonicalize_name(Requirement(r).name): r for r in project.data_only}
    if not locked["torch"].endswith("+cpu"):
        raise ValueError(f"resolved {locked['torch']}, not a CPU build; is the +cpu wheel in reach of pip?")
    head = ["# CPU machines: pip install --no-deps -r requirements/cpu.txt (`make` finds torch's +cpu build for you)."]
    head += [*made_by(report), "#", "# `pip check` then has these findings and no others:"]
    for reason, lines in sorted(findings([report, data_report], locked, project).items()):
        head += [f"# - {reason}", *(f"#     {line}" for line in sorted(set(lines)))]
    return "\n".join([*head, *(locked[name] for name in sorted(locked))]) + "\n"


def render_gpu(report: Report, project: Project) -> str:
    head = ["# CUDA machines: pip install -r requirements/gpu.txt", *made_by(report)]
    head += [f"# For the demo's verifier and prompts also: pip install --no-deps {' '.join(project.data_only)}"]
    locked = pins(report)
    return "\n".join([*head, *(locked[name] for name in sorted(locked))]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--torch-index", required=True, help="index of CPU builds, when pip has no +cpu wheel of torch")
    parser.add_argument("--reports", type=Path, help="folder of pip's reports: those there are used, others kept")
    options = parser.parse_args()
    project = Project.read()
    resolvers = {
        "cpu": lambda: resolve_cpu(project, options.torch_index),
        "data": lambda: pip_report(project.data_only, "--no-deps"),
        "gpu": lambda: pip_report(project.requirements("gpu", "demo", "dev"), plain_index=True),
    }
    reports: dict[str, Report] = {}
    for name, resolve in resolvers.items():
        kept = options.reports / f"{name}.json" if options.reports else None
        if kept is not None and kept.is_file():
            reports[name] = json.loads(kept.read_text())
            continue
        print(f"resolving {name} …", flush=True)
        reports[name] = resolve()
        if kept is not None:
            kept.write_text(json.dumps(reports[name]))
    (HERE / "cpu.txt").write_text(render_cpu(reports["cpu"], reports["data"], project))
    (HERE / "gpu.txt").write_text(render_gpu(reports["gpu"], project))


if __name__ == "__main__":
    main()
