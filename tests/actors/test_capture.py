"""One shard of work on a fake engine: fused and in two passes, what is dropped and why, and that all of it adds up."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from actors.capture import Care, Job, finite, run_shard
from actors.dead_letters import read_dead_letters
from actors.engine import Completion, EngineSpec, Sampling
from actors.fake_engine import FakeEngine
from actors.responses import read_responses, response_name
from actors.shards import ManifestRow, SampleStates, ShardMeta, read_samples, shard_name
from conf.schema import EngineConfig, EngineKind

LAYERS = (1, 2, 4)
META = ShardMeta(verifier="v", layers=LAYERS, hidden_size=128, engine="fake bfloat16", config_hash="c")
NUM_PROMPTS = 7
TURNS = [1, 2, 1, 3, 1, 2, 1]  # user turns of each conversation


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Fused extraction of seven conversations in shards of four and three."""
    rows = [
        {
            "sample": i,
            "id": f"s/{i}",
            "messages": [{"role": "user", "content": f"question {i}, turn {turn}"} for turn in range(TURNS[i])],
        }
        for i in range(NUM_PROMPTS)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "prompts.parquet")
    for folder in ("fused", "generate", "two_pass"):
        (tmp_path / folder).mkdir()
    return Job(
        prompts=str(tmp_path / "prompts.parquet"),
        out=str(tmp_path / "fused"),
        ranges=((0, 4), (4, 7)),
        sampling=Sampling(max_new_tokens=64),
        keep_truncated=True,
        max_model_len=1024,
        meta=META,
    )


def engine(verifier: Path, kind: type[FakeEngine] = FakeEngine, *, capture: bool = True) -> FakeEngine:
    config = EngineConfig(kind=EngineKind.fake, max_model_len=1024)
    return kind(EngineSpec(str(verifier), config, capture_layers=LAYERS if capture else ()))


def run(engine: FakeEngine, job: Job, shard: int = 0) -> ManifestRow:
    return asyncio.run(run_shard(engine, job, shard))


def samples(job: Job, shard: int = 0) -> list[SampleStates]:
    return read_samples(Path(job.out) / shard_name(shard, job.num_shards))


def two_passes(job: Job) -> tuple[Job, Job]:
    """The generate job and the extract job that reads its responses."""
    folder = Path(job.out).parent
    first = replace(job, out=str(folder / "generate"), meta=None)
    return first, replace(job, out=str(folder / "two_pass"), responses=first.out)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_fused_and_two_passes_leave_equal_shards(job: Job, tiny_llama: Path, temperature: float) -> None:
    job = replace(job, sampling=Sampling(64, temperature=temperature, seed=3))
    generate, extract = two_passes(job)
    for shard, size in ((0, 4), (1, 3)):
        fused = run(engine(tiny_llama), job, shard)
        answered = run(engine(tiny_llama, capture=False), generate, shard)
        second = run(engine(tiny_llama), extract, shard)
        assert answered.samples == second.samples == fused.samples == size
        assert (second.rows, second.supervised, second.sha256) == (fused.rows, fused.supervised, fused.sha256)
        for one, other in zip(samples(job, shard), samples(extract, shard), strict=True):
            assert one.sample == other.sample
            for key in ("token_ids", "loss_mask", "hidden_states"):
                assert getattr(one, key).tobytes() == getattr(other, key).tobytes()


def test_a_shard_holds_its_rows_of_the_prompts_with_the_states_of_their_tokens(job: Job, tiny_llama: Path) -> None:
    row = run(engine(tiny_llama), job, 1)
    found = samples(job, 1)
    assert [s.sample for s in found] == [4, 5, 6]
    assert row.rows == sum(len(s.token_ids) for s in found)
    assert row.supervised == sum(int(s.loss_mask.sum()) for s in found) > 0
    for s in found:
        prefilled = asyncio.run(engine(tiny_llama).generate(s.token_ids.tolist(), Sampling(1), capture=True))
        assert np.array_equal(s.hidden_states, prefilled.hidden_states)
    turns = [int(np.diff(np.r_[0, s.loss_mask.astype(int)]).clip(0).sum()) for s in found]
    assert turns == TURNS[4:]


def test_generate_alone_keeps_the_last_token(job: Job, tiny_llama: Path) -> None:
    generate, extract = two_passes(job)
    run(engine(tiny_llama, capture=False), generate)
    run(engine(tiny_llama), extract)
    responses = read_responses(Path(generate.out) / response_name(0, 2))
    for response, sample in zip(responses, samples(extract), strict=True):
        assert response.token_ids[:-1].tolist() == sample.token_ids.tolist()
        assert response.token_ids[-1] == 2 and response.loss_mask[-1]


def broken(change: Callable[[np.ndarray], Any]) -> type[FakeEngine]:
    class Broken(FakeEngine):
        """Changes the states of conversation 2."""

        async def generate(self, prompt_ids: list[int], sampling: Sampling, **options: Any) -> Completion:
            completion = await super().generate(prompt_ids, sampling, **options)
            if completion.hidden_states is not None and "question 2" in await self.decode(prompt_ids):
                change(completion.hidden_states)
            return completion

    return Broken


@pytest.mark.parametrize("bits", [0x7F80, 0xFF80, 0x7FC0, 0xFFFF])
def test_states_that_are_not_finite_are_dropped_and_counted(job: Job, tiny_llama: Path, bits: int) -> None:
    def spoil(states: np.ndarray) -> None:
        states[3, 1, 5] = bits

    generate, extract = two_passes(job)
    run(engine(tiny_llama, capture=False), generate)
    for kind in (job, extract):
        row = run(engine(tiny_llama, broken(spoil)), kind)
        assert (row.dropped, row.samples, row.samples_in) == ({"not_finite": 1}, 3, 4)
        assert [s.sample for s in samples(kind)] == [0, 1, 3]


def test_the_largest_finite_states_are_kept() -> None:
    assert finite(np.array([0x7F7F, 0xFF7F, 0x0001, 0x8000], np.uint16))


def test_cut_answers_are_dropped_and_counted_only_when_told_to(job: Job, tiny_llama: Path) -> None:
    short = replace(job, sampling=Sampling(max_new_tokens=12))
    kept = run(engine(tiny_llama), short)
    fresh = replace(short, out=str(Path(job.out).parent / "two_pass"), keep_truncated=False)
    dropped = run(engine(tiny_llama), fresh)
    assert kept.dropped == {} and kept.samples == 4
    assert dropped.dropped.keys() == {"truncated"} and 0 < dropped.dropped["truncated"] <= 4
    assert dropped.samples == 4 - dropped.dropped["truncated"]


def test_prompts_without_room_are_counted_as_too_long(job: Job, tiny_llama: Path) -> None:
    render = asyncio.run(engine(tiny_llama).render([{"role": "user", "content": "question 0, turn 0"}]))
    row = run(engine(tiny_llama), replace(job, max_model_len=len(render) + 64))
    assert (row.dropped, row.samples, row.samples_in, row.rows) == ({"too_long": 4}, 0, 4, 0)
    assert samples(replace(job, max_model_len=0)) == []


def test_an_answer_of_which_no_token_has_a_state_is_counted_as_empty(job: Job, tiny_llama: Path) -> None:
    row = run(engine(tiny_llama), replace(job, sampling=Sampling(max_new_tokens=1)))
    assert (row.dropped, row.samples, row.samples_in) == ({"empty": 4}, 0, 4)


def test_a_second_run_gives_the_row_of_the_first_committer_and_changes_nothing(job: Job, tiny_llama: Path) -> None:
    first = run(engine(tiny_llama), job)
    file = Path(job.out) / shard_name(0, 2)
    before = file.stat().st_mtime_ns
    late = replace(job, sampling=Sampling(max_new_tokens=2))  # would commit something else
    assert run(engine(tiny_llama), late) == first
    assert file.stat().st_mtime_ns == before
    generate, _ = two_passes(job)
    answered = run(engine(tiny_llama, capture=False), generate)
    assert run(engine(tiny_llama, capture=False), replace(generate, sampling=late.sampling)) == answered


def test_a_sample_draws_the_same_answer_whatever_shares_its_shard(job: Job, tiny_llama: Path) -> None:
    job = replace(job, sampling=Sampling(64, temperature=1.0, seed=3))
    alone = replace(job, ranges=((2, 3),), out=str(Path(job.out).parent / "two_pass"))
    run(engine(tiny_llama), job)
    run(engine(tiny_llama), alone)
    other = replace(alone, sampling=replace(job.sampling, seed=4), out=str(Path(job.out).parent / "generate"))
    run(engine(tiny_llama), other)
    (found,), (reseeded,) = samples(alone), samples(other)
    assert found.token_ids.tolist() == samples(job)[2].token_ids.tolist() != reseeded.token_ids.tolist()


def test_states_of_other_tokens_are_dropped_and_counted(job: Job, tiny_llama: Path) -> None:
    class Truncating(FakeEngine):
        """Drops the first token of a long prompt without a word."""

        async def generate(self, prompt_ids: list[int], sampling: Sampling, **options: Any) -> Completion:
            cut = prompt_ids[1:] if prompt_ids[:-1] == victim else prompt_ids
            return await super().generate(cut, sampling, **options)

    generate, extract = two_passes(job)
    run(engine(tiny_llama, capture=False), generate)
    answered = read_responses(Path(generate.out) / response_name(0, 2))
    victim = answered[2].token_ids[:-2].tolist()
    row = run(engine(tiny_llama, Truncating), extract)
    assert (row.dropped, row.samples, row.samples_in) == ({"token_mismatch": 1}, 3, 4)
    assert [s.sample for s in samples(extract)] == [0, 1, 3]


def test_one_after_the_other_gives_the_same_shard_and_names_each_sample_before_its_turn(
    job: Job, tiny_llama: Path
) -> None:
    turns: list[str] = []

    class Watched(FakeEngine):
        async def generate(self, prompt_ids: list[int], sampling: Sampling, **options: Any) -> Completion:
            turns.append((Path(job.out) / "attempts" / "shard-00000.turn").read_text())
            return await super().generate(prompt_ids, sampling, **options)

    together = run(engine(tiny_llama), replace(job, out=str(Path(job.out).parent / "generate")))
    alone = asyncio.run(run_shard(engine(tiny_llama, Watched), job, 0, Care(singly=True)))
    assert alone.sha256 == together.sha256
    assert turns == [str(i) for i in range(4) for _ in range(TURNS[i])]
    assert not (Path(job.out) / "attempts" / "shard-00000.turn").exists()


def test_a_shard_is_finished_without_a_lost_sample_and_says_so(job: Job, tiny_llama: Path) -> None:
    row = asyncio.run(run_shard(engine(tiny_llama), job, 1, Care(singly=True, lost=(5,))))
    assert (row.dropped, row.samples, row.samples_in) == ({"dead_letter": 1}, 2, 3)
    assert [s.sample for s in samples(job, 1)] == [4, 6]
    (letter,) = read_dead_letters(Path(job.out))
    assert (letter["sample"], letter["id"]) == (5, "s/5") and "died 3 times" in letter["error"]


def test_a_lost_sample_is_lost_in_two_passes_too(job: Job, tiny_llama: Path) -> None:
    generate, extract = two_passes(job)
    first = asyncio.run(run_shard(engine(tiny_llama, capture=False), generate, 0, Care(lost=(1,))))
    assert (first.dropped, first.samples) == ({"dead_letter": 1}, 3)
    second = asyncio.run(run_shard(engine(tiny_llama), extract, 0, Care(singly=True, lost=(2,))))
    assert (second.dropped, second.samples, second.samples_in) == ({"dead_letter": 1}, 2, 3)
    assert [s.sample for s in samples(extract)] == [0, 3]
