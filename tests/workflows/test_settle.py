"""The end of an extraction to a store: what the record will mean, or an error when the store does not hold it."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from pyarrow.fs import FileSystem

from actors.capture import Job
from actors.engine import Sampling
from actors.shard_store import below, commit_to, shown
from actors.shards import ManifestRow, SampleStates, ShardMeta, manifest_rows, to_table, with_account
from tests.s3 import bucket, s3_server
from workflows.steps.extract import _settle

META = ShardMeta(verifier="v", layers=(1, 2), hidden_size=4, engine="fake", config_hash="c")


@pytest.fixture
def store() -> Iterator[str]:
    with s3_server() as server:
        yield below(bucket(server, "settled"), "c")


def committed(store: str) -> list[ManifestRow]:
    states = np.zeros((3, 2, 4), np.uint16)
    samples = [SampleStates(number, np.arange(3, dtype=np.int32), np.ones(3, bool), states) for number in range(2)]
    return [
        commit_to(store, shard, 2, with_account(to_table([sample], META), 1, {}))
        for shard, sample in enumerate(samples)
    ]


def job(store: str, out: Path) -> Job:
    return Job("prompts.parquet", str(out), ((0, 1), (1, 2)), Sampling(4), True, 64, META, store=store)


def test_the_rows_are_kept_beside_the_record(store: str, tmp_path: Path) -> None:
    rows = committed(store)
    _settle(job(store, tmp_path), rows)
    assert manifest_rows(tmp_path) == rows


def test_a_shard_that_is_gone_by_then_is_an_error_and_nothing_is_kept(store: str, tmp_path: Path) -> None:
    rows = committed(store)
    fs, path = FileSystem.from_uri(store)
    fs.delete_file(f"{path}/{shown(rows[1].file).rpartition('/')[2]}")
    with pytest.raises(RuntimeError, match=r"extract\.store: shards \[1\] are not as this run committed them"):
        _settle(job(store, tmp_path), rows)
    assert not list(tmp_path.iterdir())
