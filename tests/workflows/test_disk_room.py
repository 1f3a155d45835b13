"""The extract step and a disk that is too small: warned of before, stopped on the way, and finished afterwards."""

import asyncio
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.capture import Job, run_shard
from actors.disk import DiskFull
from actors.engine import EngineSpec
from actors.fake_engine import FakeEngine
from actors.shards import ManifestRow, committed, read_samples
from actors.units import GIB
from actors.verifier import read_verifier
from conf.schema import EngineConfig, EngineKind, ExtractConfig, GenerateConfig
from tests.full_disk import small_disk
from tests.tiny_draft import TINY_DRAFT
from workflows import cli
from workflows.prompt_table import PromptRow, write_prompts
from workflows.steps.extract import extract

NUM_PROMPTS = 18
SHARDS = 5
HASH = "extracted"


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    folder = tmp_path / "prompts"
    folder.mkdir()
    texts = [f"what is {i * 7919} plus {i}?" for i in range(NUM_PROMPTS)]
    rows = [
        PromptRow(i, f"s/{i}", "s", "train", [{"role": "user", "content": text}], len(text) + 20)
        for i, text in enumerate(texts)
    ]
    write_prompts(folder / "prompts.parquet", rows)
    return folder


def step(verifier: Path, prompts: Path, out: Path, *, gib: float | None, ran: list[int] | None = None) -> dict:
    """The fused step with a pool in this process; `ran` notes the shards that it is given."""

    def pool(spec: EngineSpec, job: Job, todo: list[int], cfg: ExtractConfig, name: str) -> Iterator[ManifestRow]:
        engine = FakeEngine(spec)
        for shard in todo:
            if ran is not None:
                ran.append(shard)
            yield asyncio.run(run_shard(engine, job, shard))

    out.mkdir(exist_ok=True)
    engine = EngineConfig(kind=EngineKind.fake, max_model_len=1024)
    cfg = ExtractConfig(samples_per_shard=4, disk_budget_gib=gib)
    generate = GenerateConfig(max_new_tokens=200)
    return extract(
        generate, cfg, TINY_DRAFT, engine, read_verifier(verifier), False, prompts, None, pool, out
    )  # fmt: skip


def test_a_budget_that_ends_on_the_way_keeps_what_is_committed_and_a_larger_one_makes_the_rest(
    prompts: Path, tiny_llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole, out = tmp_path / "whole" / HASH, tmp_path / HASH
    whole.parent.mkdir()
    wanted = step(tiny_llama, prompts, whole, gib=None)
    allowed = wanted["bytes"] * 0.55 / GIB
    with caplog.at_level(logging.WARNING), pytest.raises(DiskFull) as caught:
        step(tiny_llama, prompts, out, gib=allowed)
    (warned,) = [line for line in caplog.messages if "begins all the same" in line]
    assert warned.startswith(f"extract: {NUM_PROMPTS} conversations of at most ")
    assert "left of extract.disk_budget_gib" in warned
    assert "Committed: 2 of 5 shards" in str(caught.value)
    done = committed(out, SHARDS, HASH)
    assert set(done) == {0, 1} and all(read_samples(out / row.file) for row in done.values())
    assert not list(out.glob(".tmp-*"))
    before = {file: file.stat().st_mtime_ns for file in out.glob("part-*")}

    # with no room for another shard nothing starts
    ran: list[int] = []
    with pytest.raises(DiskFull, match="Committed: 2 of 5 shards"):
        step(tiny_llama, prompts, out, gib=sum(row.bytes for row in done.values()) * 1.01 / GIB, ran=ran)
    assert ran == []

    # the value of the message is enough
    given = re.search(r"give extract\.disk_budget_gib=(\S+),", str(caught.value))
    assert given
    assert step(tiny_llama, prompts, out, gib=float(given[1]), ran=ran) == wanted and ran == [2, 3, 4]
    assert {file: file.stat().st_mtime_ns for file in before} == before
    assert [f.read_bytes() for f in sorted(whole.glob("*.parquet"))] == [
        f.read_bytes() for f in sorted(out.glob("*.parquet"))
    ]


def test_not_even_one_shard_of_prompts_alone_is_an_error_before_an_engine_starts(
    prompts: Path, tiny_llama: Path, tmp_path: Path
) -> None:
    ran: list[int] = []
    with pytest.raises(DiskFull, match=r"extract\.disk_budget_gib: 1e-05 GiB.*Committed: 0 of 5 shards"):
        step(tiny_llama, prompts, tmp_path / HASH, gib=1e-5, ran=ran)
    assert ran == [] and list((tmp_path / HASH).iterdir()) == []


def test_room_for_every_answer_at_its_limit_is_nothing_to_warn_of(
    prompts: Path, tiny_llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        step(tiny_llama, prompts, tmp_path / HASH, gib=1)
    assert not [line for line in caplog.messages if "extract" in line]


def test_a_disk_that_is_too_small_ends_the_same_way_without_a_budget(
    prompts: Path, tiny_llama: Path, tmp_path: Path
) -> None:
    whole = tmp_path / "whole" / HASH
    whole.parent.mkdir()
    wanted = step(tiny_llama, prompts, whole, gib=None)
    mib = wanted["bytes"] // (1 << 20)
    with small_disk(tmp_path / "disk", mib) as disk:
        with pytest.raises(
            DiskFull, match=r"output_root: .*no room for the next shard\. Committed: \d of 5.*GiB free and lacks"
        ):
            step(tiny_llama, prompts, disk / HASH, gib=None)
        done = committed(disk / HASH, SHARDS, HASH)
        assert 0 < len(done) < SHARDS and not list((disk / HASH).glob(".tmp-*"))
        for row in done.values():
            assert (disk / HASH / row.file).read_bytes() == (whole / row.file).read_bytes()


def test_the_command_ends_with_the_message_alone_and_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_: object) -> None:
        raise DiskFull("output_root: no room")

    monkeypatch.setattr(sys, "argv", ["eagle3", "experiment=smoke", f"output_root={tmp_path}"])
    with pytest.raises(SystemExit) as ended:
        cli.launch(full)
    assert ended.value.code == 1
    assert "error: output_root: no room" in capsys.readouterr().err
