"""Hidden-state shards: byte for byte, committed once, repaired after crashes, readable by plain pyarrow."""

import json
import multiprocessing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from actors import shards
from actors.commit import TEMPORARY, sweep
from actors.shards import (
    SampleStates,
    ShardMeta,
    commit,
    committed,
    plan_shards,
    read_meta,
    read_samples,
    shard_name,
)

META = ShardMeta(verifier="v1", layers=(2, 5, 8), hidden_size=4, engine="fake 1", config_hash="c1")


def sample(number: int, tokens: int, *, seed: int = 0) -> SampleStates:
    draw = np.random.default_rng((number, tokens, seed))
    return SampleStates(
        number,
        draw.integers(0, 1000, tokens).astype(np.int32),
        draw.random(tokens) < 0.5,
        draw.integers(0, 1 << 16, (tokens, 3, 4)).astype(np.uint16),
    )


SAMPLES = [sample(7, 5), sample(3, 1), sample(8, 12)]


def same(one: SampleStates, other: SampleStates) -> bool:
    return one.sample == other.sample and all(
        np.array_equal(getattr(one, key), getattr(other, key)) for key in ("token_ids", "loss_mask", "hidden_states")
    )


def names(directory: Path) -> list[str]:
    return sorted(file.name for file in directory.iterdir())


def test_roundtrip_is_byte_for_byte_and_accounted_for(tmp_path: Path) -> None:
    row = commit(tmp_path, 1, 4, SAMPLES, META, {"too_long": 2})
    file = tmp_path / "part-00001-of-00004.parquet"
    back = read_samples(file)
    assert len(back) == 3 and all(map(same, back, SAMPLES))
    assert read_meta(file) == META
    assert (row.shard, row.file, row.rows, row.samples, row.samples_in) == (1, file.name, 18, 3, 5)
    assert row.dropped == {"too_long": 2} and row.config_hash == "c1"
    assert row.supervised == sum(int(s.loss_mask.sum()) for s in SAMPLES)
    assert (row.bytes, row.sha256) == (file.stat().st_size, shards.file_sha256(file))
    assert committed(tmp_path, 4, "c1") == {1: row}
    assert names(tmp_path) == ["part-00001-of-00004.json", file.name]


def test_every_bit_pattern_survives(tmp_path: Path) -> None:
    meta = replace(META, layers=(1,), hidden_size=1 << 16)
    states = np.arange(1 << 16, dtype=np.uint16).reshape(1, 1, -1)  # NaNs, infinities and subnormals among them
    commit(tmp_path, 0, 1, [SampleStates(0, np.zeros(1, np.int32), np.ones(1, bool), states)], meta, {})
    assert np.array_equal(read_samples(tmp_path / shard_name(0, 1))[0].hidden_states, states)


def test_states_that_are_not_contiguous_are_written_in_order(tmp_path: Path) -> None:
    one = sample(0, 6)
    strided = replace(one, hidden_states=np.asfortranarray(one.hidden_states))
    commit(tmp_path, 0, 1, [strided], META, {})
    assert same(read_samples(tmp_path / shard_name(0, 1))[0], one)


def test_samples_that_span_row_groups_come_back_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "ROW_GROUP_BYTES", 4 * META.row_bytes)
    commit(tmp_path, 0, 1, SAMPLES, META, {})
    assert pq.ParquetFile(tmp_path / shard_name(0, 1)).num_row_groups == 5
    assert all(map(same, read_samples(tmp_path / shard_name(0, 1)), SAMPLES))


def test_plain_pyarrow_reads_what_the_design_says(tmp_path: Path) -> None:
    commit(tmp_path, 0, 1, SAMPLES, META, {})
    table = pq.read_table(tmp_path / shard_name(0, 1))
    assert [(field.name, field.type) for field in table.schema] == [
        ("sample", pa.int32()),
        ("position", pa.int32()),
        ("token_id", pa.int32()),
        ("loss_mask", pa.bool_()),
        ("hidden_states", pa.binary(3 * 4 * 2)),
    ]
    row = table.slice(6, 1).to_pylist()[0]  # first token of sample 8
    assert (row["sample"], row["position"], row["token_id"]) == (8, 0, int(SAMPLES[2].token_ids[0]))
    layer_major = b"".join(int(v).to_bytes(2, "little") for layer in SAMPLES[2].hidden_states[0] for v in layer)
    assert row["hidden_states"] == layer_major
    assert table["position"].to_pylist() == [*range(5), 0, *range(12)]
    described = {key.decode(): json.loads(value) for key, value in table.schema.metadata.items() if b"eyrie." in key}
    assert described["eyrie.layers"] == [2, 5, 8] and described["eyrie.hidden_size"] == 4
    assert described["eyrie.verifier"] == "v1" and described["eyrie.codec"] == "raw"


def test_states_are_not_inflated_on_disk(tmp_path: Path) -> None:
    meta = replace(META, hidden_size=1024)
    states = np.random.default_rng(0).integers(0, 1 << 16, (100, 3, 1024)).astype(np.uint16)
    commit(tmp_path, 0, 1, [SampleStates(0, np.zeros(100, np.int32), np.ones(100, bool), states)], meta, {})
    assert (tmp_path / shard_name(0, 1)).stat().st_size < states.nbytes * 1.05


@pytest.mark.parametrize(("total", "each"), [(1, 1), (10, 3), (9, 3), (2, 64), (1000, 7)])
def test_plan_covers_all_samples_once_in_order(total: int, each: int) -> None:
    plan = plan_shards(total, each)
    assert [row for rows in plan for row in rows] == list(range(total))
    assert all(1 <= len(rows) <= each for rows in plan)


@pytest.mark.parametrize(("total", "each"), [(0, 4), (4, 0)])
def test_nothing_to_plan_is_refused(total: int, each: int) -> None:
    with pytest.raises(ValueError, match="cannot plan"):
        plan_shards(total, each)


def test_second_committer_loses_and_leaves_nothing(tmp_path: Path) -> None:
    first = commit(tmp_path, 0, 1, SAMPLES, META, {})
    before = (tmp_path / shard_name(0, 1)).read_bytes()
    second = commit(tmp_path, 0, 1, [sample(1, 30)], META, {"late": 1})
    assert second == first
    assert (tmp_path / shard_name(0, 1)).read_bytes() == before
    assert names(tmp_path) == ["part-00000-of-00001.json", "part-00000-of-00001.parquet"]


def race(directory: Path, seed: int) -> shards.ManifestRow:
    return commit(directory, 0, 1, [sample(n, 50, seed=seed) for n in range(20)], META, {})


def test_committers_that_race_agree_on_one_file(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        rows = pool.starmap(race, [(tmp_path, seed) for seed in range(8)], chunksize=1)
    assert len({row.sha256 for row in rows}) == 1
    assert committed(tmp_path, 1, "c1") == {0: rows[0]}
    assert rows[0].sha256 == shards.file_sha256(tmp_path / shard_name(0, 1))
    assert len(names(tmp_path)) == 2


def test_crash_between_data_and_manifest_is_repaired(tmp_path: Path) -> None:
    row = commit(tmp_path, 2, 3, SAMPLES, META, {"too_long": 1})
    (tmp_path / "part-00002-of-00003.json").unlink()
    assert committed(tmp_path, 3, "c1") == {2: row}
    assert json.loads((tmp_path / "part-00002-of-00003.json").read_text())["sha256"] == row.sha256


def test_shards_of_another_config_are_an_error_with_and_without_manifest(tmp_path: Path) -> None:
    commit(tmp_path, 0, 1, SAMPLES, META, {})
    for _ in range(2):
        with pytest.raises(ValueError, match="written by config c1, not c2; move it away"):
            committed(tmp_path, 1, "c2")
        (tmp_path / "part-00000-of-00001.json").unlink(missing_ok=True)


def test_shards_of_another_plan_are_not_seen(tmp_path: Path) -> None:
    commit(tmp_path, 0, 4, SAMPLES, META, {})
    assert committed(tmp_path, 5, "c1") == {}


def test_sweep_removes_what_a_dead_attempt_left_and_nothing_else(tmp_path: Path) -> None:
    commit(tmp_path, 0, 1, SAMPLES, META, {})
    kept = names(tmp_path)
    for left in ("part-00000-of-00001.parquet-9-9", "part-00000-of-00001.json-9-9"):
        (tmp_path / f"{TEMPORARY}{left}").write_text("half")
    assert sweep(tmp_path) == 2 and names(tmp_path) == kept and sweep(tmp_path) == 0


def test_a_shard_whose_samples_were_all_dropped_is_still_a_shard(tmp_path: Path) -> None:
    row = commit(tmp_path, 0, 1, [], META, {"too_long": 3})
    assert (row.rows, row.samples, row.samples_in, row.supervised) == (0, 0, 3, 0)
    assert read_samples(tmp_path / shard_name(0, 1)) == []
    assert committed(tmp_path, 1, "c1") == {0: row}


@pytest.mark.parametrize(
    "wrong",
    [
        replace(sample(0, 4), hidden_states=np.zeros((4, 2, 4), np.uint16)),
        replace(sample(0, 4), hidden_states=np.zeros((4, 3, 5), np.uint16)),
        replace(sample(0, 4), hidden_states=np.zeros((3, 3, 4), np.uint16)),
        replace(sample(0, 4), hidden_states=np.zeros((4, 4, 3), np.uint16)),
        replace(sample(0, 4), hidden_states=np.zeros((4, 12), np.uint16)),
        replace(sample(0, 4), hidden_states=np.zeros((4, 3, 4), np.float16)),
        replace(sample(0, 4), hidden_states=np.zeros((4, 3, 4), np.int16)),
        sample(0, 0),
    ],
)
def test_wrong_shapes_are_refused_before_anything_is_written(tmp_path: Path, wrong: SampleStates) -> None:
    with pytest.raises(ValueError, match="sample 0"):
        commit(tmp_path, 0, 1, [sample(1, 2), wrong], META, {})
    assert names(tmp_path) == []


def test_a_sample_given_twice_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="sample 5.*twice"):
        commit(tmp_path, 0, 1, [sample(5, 2), sample(6, 1), sample(5, 3)], META, {})
    assert names(tmp_path) == []


def test_a_mask_of_another_length_is_our_mistake(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        commit(tmp_path, 0, 1, [replace(sample(0, 4), loss_mask=np.ones(3, bool))], META, {})
    assert names(tmp_path) == []
