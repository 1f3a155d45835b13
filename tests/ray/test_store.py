"""Extraction to an object store through the real pool: resumed there, the same shards, and training is told where."""

from pathlib import Path
from typing import Any

import pytest
from pyarrow.fs import FileSystem

from actors.shard_store import StoreError, below, is_uri, shown
from actors.shards import manifest_rows
from actors.train_job import TrainJob
from tests.s3 import bucket, s3_server
from tests.tiny_run import run
from workflows.steps import train as train_step

SHARDS = 5


def extracted(folder: Path, verifier: Path, *more: str) -> tuple[Path, tuple[str, ...]]:
    """The extraction's folder, and the shards that training was told of; it ends there."""
    told: list[TrainJob] = []

    def fit(job: TrainJob) -> None:
        told.append(job)
        raise KeyboardInterrupt

    def train(*args: Any) -> Any:
        return train_step.train(*args[:-2], fit, args[-1])

    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("workflows.eagle3.train", train)
        run(folder, verifier, *more)
    (out,) = (folder / "root" / "extract").iterdir()
    return out, told[0].shards


def test_an_extraction_to_a_store_is_resumed_there_and_is_what_a_disk_would_hold(
    local_ray: None, tiny_llama: Path, tmp_path: Path
) -> None:
    local, files = extracted(tmp_path / "local", tiny_llama)
    assert [Path(file).name for file in files] == [row.file for row in manifest_rows(local)]
    with s3_server() as server:
        store = below(bucket(server, "shards"), "eyrie")
        given = f"extract.store='{store}'"
        out, uris = extracted(tmp_path / "far", tiny_llama, given)
        assert len(uris) == SHARDS and all(is_uri(uri) for uri in uris)
        assert {shown(uri).rpartition("/")[0] for uri in uris} == {f"s3://shards/eyrie/{out.name}"}
        assert [row.sha256 for row in manifest_rows(out)] == [row.sha256 for row in manifest_rows(local)]
        assert not list(out.glob("*.parquet"))

        # killed after all but one were committed: the rest stays as it is
        fs, path = FileSystem.from_uri(below(store, out.name))
        fs.delete_file(f"{path}/part-00002-of-00005.json")
        (out / "record.json").unlink()
        again, others = extracted(tmp_path / "far", tiny_llama, given)
        assert again == out and [a == b for a, b in zip(uris, others, strict=True)] == [True, True, False, True, True]
        assert [row.sha256 for row in manifest_rows(out)] == [row.sha256 for row in manifest_rows(local)]

        # a finished extraction does not care where the next would go
        assert extracted(tmp_path / "far", tiny_llama)[1] == others


def test_a_store_that_cannot_be_written_ends_the_run_before_an_engine_starts(
    local_ray: None, tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_late(*_: Any) -> Any:
        raise AssertionError("an engine was started")

    monkeypatch.setattr("actors.shard_pool.run_pool", too_late)
    with s3_server() as server, pytest.raises(StoreError, match=r"extract\.store: s3://absent/.*not found"):
        run(
            tmp_path,
            tiny_llama,
            f"extract.store='s3://absent/x?scheme=http&endpoint_override={server}&region=us-east-1'",
        )
