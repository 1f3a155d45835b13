"""What the layout promises: who may import whom, which modules are pure, how long a file may be."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("workflows", "actors", "conf")
PURE = [
    "workflows/artifact.py",
    "workflows/checks.py",
    "workflows/config.py",
    "workflows/disk_room.py",
    "workflows/errors.py",
    "workflows/fingerprint.py",
    "workflows/lease.py",
    "workflows/progress.py",
    "workflows/provenance.py",
    "workflows/report.py",
    "workflows/runner.py",
    "workflows/step.py",
    "workflows/tables.py",
    "workflows/verifier_checks.py",
    "workflows/gate_report.py",
    "actors/capture_gate.py",
    "actors/checkpoint_folder.py",
    "actors/disk.py",
    "actors/engine.py",
    "actors/full_disk.py",
    "actors/shards.py",
    "actors/tokenizer_files.py",
    "actors/verifier.py",
    "actors/verifier_head.py",
    "actors/verifier_tensors.py",
    "actors/vllm_args.py",
    "conf/schema.py",
]
HEAVY = {"ray", "vllm", "torch", "transformers", "speculators"}
MAX_LINES = 400


def sources(*folders: str) -> list[Path]:
    return sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))


def name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def imported(file: Path) -> set[str]:
    """Top-level names of everything imported, at whatever depth of the file."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(), str(file))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name(file)}: relative import"
            found.add((node.module or "").split(".")[0])
    return found


@pytest.mark.parametrize("file", sources("actors", "conf"), ids=name)
def test_workers_and_configuration_never_import_the_driver(file: Path) -> None:
    forbidden = {"workflows", "tests"} | ({"actors"} if file.is_relative_to(ROOT / "conf") else set())
    assert not imported(file) & forbidden


@pytest.mark.parametrize("file", sources("workflows"), ids=name)
def test_the_driver_never_imports_tests(file: Path) -> None:
    assert "tests" not in imported(file)


def test_only_the_files_named_for_it_import_vllm() -> None:
    allowed = {file for file in sources("actors") if file.name.startswith("vllm_") and file.parent == ROOT / "actors"}
    found = {file for file in sources(*PACKAGES) if "vllm" in imported(file)}
    assert found <= allowed, [name(file) for file in found - allowed]


@pytest.mark.parametrize("file", PURE)
def test_pure_modules_import_nothing_heavy(file: str) -> None:
    assert not imported(ROOT / file) & HEAVY


@pytest.mark.parametrize(
    "module", ["workflows.runner", "workflows.cli", "workflows.report", "actors.shards", "actors.vllm_args"]
)
def test_pure_modules_pull_in_nothing_heavy_through_others(module: str) -> None:
    code = f"import sys, {module}; print(sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("file", sources(*PACKAGES, "tests", "requirements"), ids=name)
def test_every_file_is_short_and_says_what_it_is(file: Path) -> None:
    text = file.read_text()
    assert len(text.splitlines()) <= MAX_LINES
    assert ast.get_docstring(ast.parse(text)), "no module docstring"


@pytest.mark.parametrize("file", sources(*PACKAGES), ids=name)
def test_every_signature_is_typed(file: Path) -> None:
    untyped = []
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
        bare = [a.arg for a in every if a and a.annotation is None and a.arg not in ("self", "cls")]
        if bare or (node.returns is None and node.name != "__init__"):
            untyped.append(f"{node.name} (line {node.lineno}): {', '.join(bare) or 'no return type'}")
    assert untyped == []
