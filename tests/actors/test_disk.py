"""Room for shards: refused before it is written, said with numbers that suffice, and what is committed stays."""

import errno
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from actors import checkpoints
from actors.commit import TEMPORARY, commit_once, replace_atomically, sweep, whole_folder
from actors.disk import CLAIM, Budget, DiskFull, Usage, shard_bytes, usage
from actors.full_disk import told
from actors.shards import SampleStates, ShardMeta, commit, committed, read_samples, shard_name
from actors.units import GIB
from tests.full_disk import small_disk

META = ShardMeta(verifier="v", layers=(1, 2), hidden_size=256, engine="fake", config_hash="c")
SHARDS = 4


def sample(tokens: int, seed: int = 0) -> SampleStates:
    states = np.random.default_rng(seed).integers(0, 1 << 16, (tokens, 2, 256)).astype(np.uint16)
    return SampleStates(0, np.zeros(tokens, np.int32), np.ones(tokens, bool), states)


def write(folder: Path, shard: int, tokens: int = 1000, limit: int | None = None) -> None:
    with Budget(folder, SHARDS, limit).room(shard, shard_bytes(tokens, META.row_bytes)):
        commit(folder, shard, SHARDS, [sample(tokens, shard)], META, {})


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


@pytest.mark.parametrize("tokens", [0, 1, 100, 5000, 200_000])
def test_a_shard_takes_no_more_than_was_said_and_hardly_less(tokens: int, tmp_path: Path) -> None:
    commit(tmp_path, 0, SHARDS, [sample(tokens)] if tokens else [], META, {})
    took = sum(file.stat().st_size for file in tmp_path.iterdir())
    said = shard_bytes(tokens, META.row_bytes)
    assert took <= said <= 1.01 * took + (16 << 10)
    assert usage(tmp_path) == Usage(1, took, 0)


def test_a_budget_refuses_the_first_shard_that_exceeds_it_and_writes_none_of_it(tmp_path: Path) -> None:
    each = shard_bytes(1000, META.row_bytes)
    for shard in range(2):
        write(tmp_path, shard, limit=2 * each)
    before = names(tmp_path)
    with pytest.raises(DiskFull, match="extract.disk_budget_gib"):
        write(tmp_path, 2, limit=3 * each - (48 << 10))
    assert names(tmp_path) == before and len(committed(tmp_path, SHARDS, "c")) == 2
    write(tmp_path, 2, limit=3 * each)


def test_the_message_counts_what_is_there_and_its_value_is_enough(tmp_path: Path) -> None:
    for shard in range(2):
        write(tmp_path, shard)
    done = usage(tmp_path)
    with pytest.raises(DiskFull) as caught:
        write(tmp_path, 2, limit=done.committed + 1000)
    message = str(caught.value)
    gib = f"{done.committed / GIB:.2g}"
    for part in (f"2 of 4 shards, {gib} GiB", f"extract.disk_budget_gib: {gib} GiB", "2 of 0.00", "the mean so far"):
        assert part in message, (part, message)
    for part in ("The budget lacks", "GiB free", "null for what", "the same command goes on from there"):
        assert part in message, (part, message)
    given = re.search(r"give extract\.disk_budget_gib=(\S+),", message)
    assert given
    limit = int(float(given[1]) * GIB)
    assert limit < 1.1 * 2 * done.committed
    for shard in (2, 3):
        write(tmp_path, shard, limit=limit)
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), DiskFull)  # it comes from another process


def test_without_a_committed_shard_the_first_is_the_measure(tmp_path: Path) -> None:
    with pytest.raises(DiskFull, match=r"Committed: 0 of 4 shards, 0\.00 GiB.* 4 of \S+ and 5 %"):
        write(tmp_path, 0, limit=1000)
    assert names(tmp_path) == []


def test_workers_that_write_at_once_stay_within_the_budget_together(tmp_path: Path) -> None:
    each = shard_bytes(1000, META.row_bytes)
    budget = Budget(tmp_path, SHARDS, 2 * each)
    with budget.room(0, each), budget.room(1, each):
        assert usage(tmp_path) == Usage(0, 0, 2 * each) and budget.left() == 0
        with pytest.raises(DiskFull), budget.room(2, 1):
            raise AssertionError("there is no room")
        with budget.room(0, each):  # the same shard again: its claim counts once
            pass
    assert names(tmp_path) == [] and budget.left() == 2 * each


def test_a_claim_counts_until_its_shard_is_committed(tmp_path: Path) -> None:
    for shard in (0, 1):
        with (tmp_path / f"{CLAIM}{shard}").open("wb") as file:
            file.truncate(1000)  # as a worker leaves it that was killed
    assert usage(tmp_path) == Usage(0, 0, 2000) and Budget(tmp_path, SHARDS, 2500).left() == 500
    (tmp_path / shard_name(0, SHARDS)).write_bytes(bytes(900))
    assert usage(tmp_path) == Usage(1, 900, 1000)
    assert sweep(tmp_path) == 2 and usage(tmp_path) == Usage(1, 900, 0)


def test_other_errors_pass_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(OSError) as caught, Budget(tmp_path, SHARDS).room(0, 1):
        raise OSError(errno.EIO, "Input/output error")
    assert caught.value.errno == errno.EIO


def test_a_disk_with_too_little_left_refuses_before_it_is_full(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4) as disk:
        for shard in range(3):
            write(disk, shard)
        with pytest.raises(
            DiskFull,
            match=r"output_root: .*/disk: no room for the next shard\. Committed: 3 of 4.* and lacks .* free th",
        ):
            write(disk, 3, tokens=2000)
        assert len(committed(disk, SHARDS, "c")) == 3 and not list(disk.glob(f"{TEMPORARY}*"))
        for shard in range(3):
            (one,) = read_samples(disk / shard_name(shard, SHARDS))
            assert np.array_equal(one.hidden_states, sample(1000, shard).hidden_states)


def test_a_disk_that_others_fill_meanwhile_ends_in_the_same_message(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4) as disk:
        write(disk, 0)
        with pytest.raises(DiskFull, match=r"Committed: 1 of 4 shards.*lacks"), Budget(disk, SHARDS).room(1, 1):
            (disk / "other").write_bytes(b"x" * (2 << 20))
            commit(disk, 1, SHARDS, [sample(2000)], META, {})
        assert names(disk) == ["other", shard_name(0, SHARDS).replace("parquet", "json"), shard_name(0, SHARDS)]
        (disk / "other").unlink()
        write(disk, 1, tokens=2000)


def test_whoever_writes_says_which_file_system_is_full(tmp_path: Path) -> None:
    """Each library has an error of its own for it; torch's does not even say what it is."""
    large = {"weight": torch.zeros(3_000_000)}

    def draft(disk: Path) -> None:
        with whole_folder(disk / "flat") as folder:
            save_file(large, folder / "model.safetensors")

    with small_disk(tmp_path / "disk", 4) as disk:
        for call, name in (
            (draft, "flat"),
            (lambda disk: checkpoints.save(disk, large, 3, keep=2), "step-00000003"),
            (lambda disk: replace_atomically(disk / "report.json", "x" * 9_000_000), "report.json"),
            (lambda disk: commit_once(disk / "a", lambda file: file.write_bytes(bytes(9 << 20)) and None), "a"),
        ):
            with pytest.raises(OSError) as caught:
                call(disk)
            assert caught.value.errno == errno.ENOSPC and names(disk) == []
            said = f"No space left on device: the file system of {disk} has 0.0039 GiB free of 0.0039, too little for "
            assert str(caught.value).endswith(said + name)
            assert told(RuntimeError(f"rank 0:\n  OSError: {caught.value}\nmore")) == said + name
    assert told(RuntimeError("No space left on device")) is None  # of whatever else
