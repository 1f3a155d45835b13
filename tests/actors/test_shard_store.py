"""Shards on an object store: a real S3 server on localhost, through pyarrow, as extraction and training use it."""

import asyncio
import logging
import threading
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pyarrow.fs import FileSelector, FileSystem

from actors.capture import Job, run_shard
from actors.engine import EngineSpec, Sampling
from actors.fake_engine import FakeEngine
from actors.shard_cache import ShardCache
from actors.shard_dataset import ShardDataset
from actors.shard_store import StoreError, below, commit_to, committed_in, is_uri, probe, read_columns, shown
from actors.shards import ManifestRow, SampleStates, ShardMeta, commit, to_table, with_account
from actors.vocabulary import count_tokens
from conf.schema import EngineConfig, EngineKind
from tests.s3 import bucket, s3_server

META = ShardMeta(verifier="v", layers=(1, 2, 4), hidden_size=8, engine="fake", config_hash="c")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as address:
        yield address


@pytest.fixture
def store(server: str, request: pytest.FixtureRequest) -> str:
    """URI of a step's folder in a bucket of the test's own."""
    return below(bucket(server, f"b{zlib.crc32(request.node.name.encode())}"), "eyrie/extract-1")


def sample(number: int, tokens: int = 6) -> SampleStates:
    draw = np.random.default_rng(number)
    states = draw.integers(0x3E00, 0x3F80, (tokens, 3, 8)).astype(np.uint16)
    return SampleStates(number, draw.integers(0, 500, tokens).astype(np.int32), draw.random(tokens) < 0.5, states)


def put(store: str, shard: int, *numbers: int, meta: ShardMeta = META, shards: int = 3) -> ManifestRow:
    table = with_account(to_table([sample(n) for n in numbers], meta), len(numbers), {"truncated": 1})
    return commit_to(store, shard, shards, table)


def objects(store: str) -> dict[str, int]:
    fs, path = FileSystem.from_uri(store)
    return {info.base_name: info.size for info in fs.get_file_info(FileSelector(path, allow_not_found=True))}


def write(store: str, name: str, content: bytes) -> None:
    fs, path = FileSystem.from_uri(store)
    with fs.open_output_stream(f"{path}/{name}") as out:
        out.write(content)


def itself(file: Path) -> Path:
    return file


def data(row: ManifestRow) -> str:
    return shown(row.file).rpartition("/")[2]


def test_a_shard_is_the_same_as_on_a_disk_and_its_manifest_says_where_it_is(store: str, tmp_path: Path) -> None:
    row = put(store, 1, 4, 5)
    local = commit(tmp_path, 1, 3, [sample(4), sample(5)], META, {"truncated": 1})
    assert is_uri(row.file) and row.file.endswith(f"#{local.sha256}")
    assert replace(row, file="") == replace(local, file="")
    copy = ShardCache(str(tmp_path / "cache"), None).read(row.file, Path.read_bytes)
    assert copy == (tmp_path / local.file).read_bytes()
    assert set(objects(store)) == {data(row), "part-00001-of-00003.json"}
    assert committed_in(store, 3, "c") == {1: row}


def test_the_first_committer_wins_and_the_second_leaves_nothing(store: str) -> None:
    first = put(store, 0, 1)
    assert put(store, 0, 2) == first
    assert len(objects(store)) == 2


def test_committers_at_once_end_with_one_whole_shard(store: str) -> None:
    threads = [threading.Thread(target=put, args=(store, 0, number)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    row = committed_in(store, 3, "c")[0]
    assert sorted(objects(store)) == sorted([data(row), "part-00000-of-00003.json"])  # losers' data was swept
    (number,) = read_columns(row.file, ["sample"])["sample"].unique().to_pylist()
    assert read_columns(row.file, ["token_id"])["token_id"].to_pylist() == sample(number).token_ids.tolist()


def test_data_without_a_manifest_is_swept_and_a_manifest_without_its_data_is_not_believed(
    store: str, caplog: pytest.LogCaptureFixture
) -> None:
    kept, cut, gone = put(store, 0, 1), put(store, 1, 2), put(store, 2, 3)
    write(store, "part-00001-of-00003.0123456789ab.parquet", b"PAR1 a dead attempt")
    write(store, data(cut), b"PAR1")
    fs, path = FileSystem.from_uri(store)
    fs.delete_file(f"{path}/{data(gone)}")
    with caplog.at_level(logging.WARNING):
        assert committed_in(store, 3, "c") == {0: kept}
    assert sorted(objects(store)) == sorted([data(kept), "part-00000-of-00003.json"])
    assert sum("its shard runs again" in line for line in caplog.messages) == 2
    assert put(store, 1, 2).rows == cut.rows  # nothing stands in the way


def test_a_manifest_whose_data_was_swept_meanwhile_is_no_commit(store: str) -> None:
    """A dead driver's worker wrote its manifest after the next driver's sweep."""
    late = put(store, 0, 1)
    fs, path = FileSystem.from_uri(store)
    fs.delete_file(f"{path}/{data(late)}")
    row = put(store, 0, 1)
    assert row.file != late.file and committed_in(store, 3, "c") == {0: row}


def test_nothing_there_is_nothing_done(store: str) -> None:
    assert committed_in(store, 3, "c") == {}


def test_shards_of_another_configuration_are_an_error(store: str) -> None:
    put(store, 0, 1, meta=replace(META, config_hash="other"))
    with pytest.raises(StoreError, match=r"part-00000-of-00003.json was written by config other, not c.*another store"):
        committed_in(store, 3, "c")


def test_training_reads_the_same_from_a_store_as_from_a_disk(store: str, tmp_path: Path) -> None:
    rows = [put(store, 0, 7, 3), put(store, 1, 8), put(store, 2, 1, 0)]
    groups = [(7, 3), (8,), (1, 0)]
    local = [commit(tmp_path, i, 3, [sample(n) for n in g], META, {"truncated": 1}) for i, g in enumerate(groups)]
    cache, files = ShardCache(str(tmp_path / "cache"), None), [row.file for row in rows]
    chosen = {7, 8, 0}
    ours = ShardDataset(files, chosen, 5, torch.bfloat16, cache)
    theirs = ShardDataset([str(tmp_path / row.file) for row in local], chosen, 5, torch.bfloat16)
    assert not list((tmp_path / "cache").glob("*"))  # the index needs no states
    assert len(ours) == len(theirs) == 3 and ours.approx_lengths == theirs.approx_lengths
    for index in range(3):
        for key, value in theirs[index].items():
            assert torch.equal(torch.as_tensor(ours[index][key]), torch.as_tensor(value)), key
    assert count_tokens(files, chosen) == count_tokens([str(tmp_path / row.file) for row in local], chosen)


def test_the_cache_fetches_once_and_makes_room(store: str, tmp_path: Path) -> None:
    rows = [put(store, shard, shard) for shard in range(3)]
    cache = ShardCache(str(tmp_path), rows[0].bytes * 5 // 2)  # two of three
    first, second = cache.read(rows[0].file, itself), cache.read(rows[1].file, itself)
    before = first.stat().st_ino
    assert cache.read(rows[0].file, itself).stat().st_ino == before
    third = cache.read(rows[2].file, itself)
    assert first.exists() and third.exists() and not second.exists()  # the second was used least lately
    assert len(cache.read(rows[1].file, Path.read_bytes)) == rows[1].bytes
    assert not list(tmp_path.glob(".tmp-*"))


def test_the_cache_evicts_nothing_that_is_being_read(store: str, tmp_path: Path) -> None:
    rows = [put(store, shard, shard) for shard in range(2)]
    cache = ShardCache(str(tmp_path), rows[0].bytes)  # one of two

    def while_it_is_read(first: Path) -> Path:
        second = cache.read(rows[1].file, itself)
        assert first.exists() and second.exists()
        return first

    assert cache.read(rows[0].file, while_it_is_read).exists()


def test_an_object_that_is_not_what_was_committed_is_refused(store: str, tmp_path: Path) -> None:
    row = put(store, 0, 1)
    write(store, data(row), b"x" * row.bytes)
    with pytest.raises(StoreError, match=r"its sha256 is .* was committed. Delete it .*the shard runs again"):
        ShardCache(str(tmp_path), None).read(row.file, itself)
    assert not [file for file in tmp_path.iterdir() if file.suffix != ".lock"]


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("s4://bucket/folder", "s4://bucket/folder: Unrecognized filesystem type"),
        ("s3://key:word@bucket/folder", "s3://bucket/folder holds credentials.*by environment"),
        ("nowhere", "empty scheme"),
    ],
)
def test_an_address_that_is_none_is_an_error_that_says_what_to_do(uri: str, said: str) -> None:
    with pytest.raises(StoreError, match=rf"extract\.store: .*{said}") as caught:
        probe(uri)
    assert "word" not in str(caught.value)


def test_a_bucket_that_is_not_there_is_an_error_and_no_secret_is_told(server: str) -> None:
    uri = f"s3://absent/folder?scheme=http&endpoint_override={server}&region=us-east-1"
    with pytest.raises(StoreError, match=r"s3://absent/folder: .*not found.*the bucket's name.*goes on") as caught:
        probe(uri)
    assert "secret" not in str(caught.value) and "endpoint_override" not in str(caught.value)


def test_a_probe_leaves_nothing(store: str) -> None:
    probe(store)
    assert objects(store) == {}


def test_a_store_that_goes_away_is_an_error_and_what_is_committed_stays(tmp_path: Path) -> None:
    with s3_server() as address:
        store = below(bucket(address, "going"), "run")
        put(store, 0, 1)
    with pytest.raises(StoreError, match=r"s3://going/run: .*What is committed stays"):
        put(store.replace("scheme=http", "scheme=http&max_attempts=1"), 1, 2)


def test_a_worker_commits_to_the_store_what_it_would_to_a_disk(store: str, tiny_llama: Path, tmp_path: Path) -> None:
    rows = [{"sample": i, "id": f"s/{i}", "messages": [{"role": "user", "content": f"{i}?"}]} for i in range(3)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "prompts.parquet")
    config = EngineConfig(kind=EngineKind.fake, max_model_len=1024, num_cpus=1, num_gpus=0)
    engine = FakeEngine(EngineSpec(str(tiny_llama), config, capture_layers=(1, 2, 4)))
    meta = ShardMeta("v", (1, 2, 4), 128, "fake", "c")
    job = Job(
        str(tmp_path / "prompts.parquet"), str(tmp_path / "out"), ((0, 3),), Sampling(12), True, 1024, meta, store=store
    )
    (tmp_path / "out").mkdir()
    row = asyncio.run(run_shard(engine, job, 0))
    local = asyncio.run(run_shard(engine, replace(job, store=None), 0))
    assert (row.sha256, row.samples, row.dropped) == (local.sha256, local.samples, local.dropped)
