"""Records: written whole or not at all, never trusted when damaged, and what differs is named."""

import json
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conf.schema import TrainConfig
from workflows.artifact import RECORD, Record, explain_difference, latest_record, read_record, write_record
from workflows.fingerprint import identity

TRAIN = TrainConfig(epochs=1, lr=0.001)


def record(**changes: Any) -> Record:
    config = {"train": identity(TRAIN), "mode": "fused"}
    accounting = {"steps": 3, "val": {"a": 0.5}}
    base = Record("train", "f" * 64, config, {"extract": "ab12" * 16}, {"time": "t"}, accounting, 1.5)
    return replace(base, **changes)


def test_roundtrip_leaves_one_file(tmp_path: Path) -> None:
    write_record(tmp_path, record())
    assert read_record(tmp_path) == record()
    assert [file.name for file in tmp_path.iterdir()] == [RECORD]


def test_nothing_there_is_not_done(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert read_record(tmp_path) is None
    assert read_record(tmp_path / "absent") is None
    assert not caplog.records


def test_whole_number_of_seconds_is_still_a_record(tmp_path: Path) -> None:
    write_record(tmp_path, record(seconds=2))
    assert read_record(tmp_path) == record(seconds=2)


def test_every_truncation_is_not_done_and_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_record(tmp_path, record())
    whole = (tmp_path / RECORD).read_bytes()
    for length in range(len(whole)):
        (tmp_path / RECORD).write_bytes(whole[:length])
        caplog.clear()
        assert read_record(tmp_path) is None, f"trusted after {length} of {len(whole)} bytes"
        assert [entry.levelno for entry in caplog.records] == [logging.WARNING]


@pytest.mark.parametrize("damage", [{"seconds": "1"}, {"config": []}, {"fingerprint": None}, {"surplus": 1}])
def test_wrong_content_is_not_done(tmp_path: Path, damage: dict[str, Any]) -> None:
    write_record(tmp_path, record())
    values = json.loads((tmp_path / RECORD).read_text())
    (tmp_path / RECORD).write_text(json.dumps(values | damage))
    assert read_record(tmp_path) is None


def test_binary_garbage_and_other_json_are_not_done(tmp_path: Path) -> None:
    for garbage in (b"\xff\xfe\x00", b"[]", b"null", b"\0" * 100):
        (tmp_path / RECORD).write_bytes(garbage)
        assert read_record(tmp_path) is None


def test_accounting_that_json_cannot_hold_leaves_the_step_not_done(tmp_path: Path) -> None:
    for bad in ({"a": tmp_path}, {"a": float("nan")}):
        with pytest.raises((TypeError, ValueError)):
            write_record(tmp_path, record(accounting=bad))
    assert list(tmp_path.iterdir()) == []


def test_failed_overwrite_keeps_the_old_record(tmp_path: Path) -> None:
    write_record(tmp_path, record())
    with pytest.raises(TypeError):
        write_record(tmp_path, record(accounting={"a": tmp_path}))
    assert read_record(tmp_path) == record()


def test_difference_names_changed_added_and_removed_keys_and_inputs() -> None:
    old = record(config={"train": identity(TRAIN) | {"gone": 1}, "mode": "fused"})
    config = {"train": replace(TRAIN, lr=0.002, num_workers=8), "mode": "fused", "new": {"a": [1]}}
    lines = explain_difference(old, config, {"extract": "cd34" * 16, "verifier": "0123456789"})
    assert lines == [
        "new.a: absent -> [1]",
        "train.gone: 1 -> absent",
        "train.lr: 0.001 -> 0.002",
        "input extract: ab12ab12 -> cd34cd34",
        "input verifier: absent -> 01234567",
    ]


def test_equal_configuration_has_no_difference() -> None:
    assert explain_difference(record(), {"train": TRAIN, "mode": "fused"}, {"extract": "ab12" * 16}) == []


def test_latest_record_is_the_newest_that_can_be_trusted(tmp_path: Path) -> None:
    assert latest_record(tmp_path / "absent") is None
    for age, name in enumerate(["new", "old", "older"]):
        (tmp_path / name).mkdir()
        write_record(tmp_path / name, record(fingerprint=name))
        os.utime(tmp_path / name / RECORD, (1000 - age, 1000 - age))
    (tmp_path / "unfinished").mkdir()
    found = latest_record(tmp_path)
    assert found and found.fingerprint == "new"
    (tmp_path / "new" / RECORD).write_text("{")
    found = latest_record(tmp_path)
    assert found and found.fingerprint == "old"
