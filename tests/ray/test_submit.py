"""`python -m workflows.submit` against a real head with a token: the job's log, its exit code, Ctrl-C, bad input."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.head import Head, ray_head
from tests.tiny_run import overrides
from workflows import job

ROOT = Path(__file__).resolve().parents[2]
SLOW = "+engine.extra.seconds_per_token=0.05"


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    with ray_head() as head:
        yield head


def submit(head: Head, *args: str, folder: Path = ROOT, **env: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "workflows.submit", "--address", head.address, *args]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, env=head.env | env, cwd=folder, **pipes)


def finished(process: subprocess.Popen, timeout: float = 150) -> tuple[int, str]:
    said, _ = process.communicate(timeout=timeout)
    return process.returncode, said


def test_a_job_runs_to_its_report_and_says_every_line_once(head: Head, tiny_llama: Path, tmp_path: Path) -> None:
    """Up to the first shards: what follows has no more of a job in it."""
    code, said = finished(submit(head, *overrides(tmp_path, tiny_llama, "name=nest-1", "dry_run=true")))
    assert code == 0, said
    assert said.count("never finished here") == 5
    assert not (tmp_path / "root").exists() or not any((tmp_path / "root").glob("extract/*"))


def test_ctrl_c_stops_the_job_with_its_shards_committed_and_gives_the_drivers_exit_code(
    head: Head, tiny_llama: Path, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    given = overrides(tmp_path, tiny_llama, SLOW, "extract.samples_per_shard=1", "extract.shards_in_flight=1")
    process = submit(head, *given, "name=nest-2", GIT_SHA="abc123")
    deadline = time.monotonic() + 120
    while not list(root.glob("extract/*/part-*.parquet")):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
        time.sleep(0.1)
    second, refused = finished(submit(head, *given, "name=nest-2"))
    assert second == 2 and "is in use by another driver" in refused
    process.send_signal(signal.SIGINT)
    code, said = finished(process)
    assert code == 128 + signal.SIGTERM, said
    assert said.count("SIGTERM: no new shards") == 1 and "stopped as asked; the same command goes on" in said
    (out,) = root.glob("extract/*")
    shards = list(out.glob("part-*.parquet"))
    assert 1 <= len(shards) < 18 and len(list(out.glob("part-*.json"))) == len(shards) and not list(out.glob(".tmp-*"))
    (prompts,) = root.glob("prompts/*/record.json")
    assert json.loads(prompts.read_text())["provenance"]["git_sha"] == "abc123"
    assert list(root.glob("hydra/*/*/.hydra/overrides.yaml"))

    listed = subprocess.run(
        [sys.executable, "-c", LIST, head.address], env=head.env, capture_output=True, text=True, check=True
    )
    jobs = json.loads(listed.stdout)
    ours = [one for one in jobs if one["metadata"]["eyrie"] == "nest-2"]
    assert {one["metadata"]["output_root"] for one in ours} == {str(root)}
    assert {one["metadata"]["git_sha"] for one in ours} >= {"abc123"}
    assert sorted(one["status"] for one in ours) == ["FAILED", "STOPPED"]


LIST = """
import json, sys
from ray.job_submission import JobSubmissionClient
jobs = JobSubmissionClient(sys.argv[1]).list_jobs()
print(json.dumps([{"metadata": job.metadata, "status": job.status} for job in jobs if job.metadata]))
"""


def test_a_mistake_is_refused_before_anything_is_sent(head: Head, tiny_llama: Path, tmp_path: Path) -> None:
    cases = {
        ("experiment=smoke", "output_root=outputs"): "output_root: outputs is relative, and a submitted job",
        ("experiment=smoke", f"output_root={tmp_path}", "train.lrr=1"): "train.lrr: there is no such key. Did you mean",
        ("experiment=smoke", f"output_root={tmp_path}", "train.lr=[1"): "error: ",
    }
    for args, message in cases.items():
        code, said = finished(submit(head, *args))
        assert (code, message in said) == (2, True), said
        assert "job raysubmit" not in said


def test_a_wrong_token_is_said(head: Head, tmp_path: Path) -> None:
    code, said = finished(
        submit(head, "experiment=smoke", f"output_root={tmp_path}", RAY_AUTH_TOKEN="another-token-0123456789abcdef0123")
    )
    assert code == 2 and "the cluster refuses this token" in said and "RAY_AUTH_TOKEN" in said


def test_another_version_of_ray_is_said(head: Head, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import ray\nray.__version__ = '2.59.0'\n")
    code, said = finished(submit(head, "experiment=smoke", f"output_root={tmp_path}", PYTHONPATH=f"{tmp_path}:{ROOT}"))
    assert code == 2 and "the cluster runs Ray 2." in said and "this is 2.59.0: install requirements/gpu.txt" in said


def test_a_folder_over_the_upload_limit_is_said(head: Head, tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns(".git", ".venv", "outputs", "tests", "__pycache__", ".*_cache")
    copy = Path(shutil.copytree(ROOT, tmp_path / "copy", ignore=ignored))
    with (copy / "data.bin").open("wb") as file:
        for _ in range(110):
            file.write(os.urandom(1 << 20))
    code, said = finished(submit(head, "experiment=smoke", f"output_root={tmp_path}", folder=copy))
    assert code == 2 and "the job was not taken" in said and ".rayignore" in said


def test_what_is_uploaded_is_small(tmp_path: Path) -> None:
    from ray._private.runtime_env.packaging import create_package

    package = tmp_path / "package.zip"
    create_package(str(ROOT), package, include_gitignore=True, excludes=[".git", ".venv"])
    names = zipfile.ZipFile(package).namelist()
    assert any(name.endswith("workflows/eagle3.py") for name in names) and not any("tests/" in name for name in names)
    assert package.stat().st_size < 5 << 20


@pytest.mark.parametrize(
    "override",
    [
        "++prompts.sources={mine: {kind: file, path: '/a b/$HOME.jsonl'}}",
        "draft.aux_layers=[1,2,3]",
        "hydra.run.dir=${output_root}/hydra/${now:%H}",
        'verifier.source="it\'s \\"here\\""',
    ],
)
def test_overrides_reach_the_driver_as_they_were_typed(override: str) -> None:
    command = job.entrypoint(["experiment=smoke", override])
    assert shlex.split(command) == ["python", "-m", "workflows.eagle3", "experiment=smoke", override]
    shell = subprocess.run(f"printf '%s\\n' {shlex.join(shlex.split(command)[3:])}", shell=True, capture_output=True)
    assert shell.stdout.decode().splitlines() == ["experiment=smoke", override]
