"""Extraction through the real pool with the fake engine: a poisonous prompt costs itself and nothing else."""

import logging
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from actors.capture import Job
from actors.dead_letters import read_dead_letters
from actors.engine import EngineSpec, Sampling
from actors.shard_pool import run_pool
from actors.shards import ManifestRow, ShardMeta, read_samples
from conf.schema import EngineConfig, EngineKind, ExtractConfig, WorkersConfig

LAYERS = (1, 2, 4)
POISON = 7  # the sample whose prompt holds the token that kills the engine
TILDE = 3 + ord("~")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Twelve conversations in three shards of four."""
    folder = tmp_path_factory.mktemp("prompts")
    texts = [f"question {i}{'~' if i == POISON else ''}" for i in range(12)]
    rows = [{"sample": i, "id": f"s/{i}", "messages": [{"role": "user", "content": t}]} for i, t in enumerate(texts)]
    pq.write_table(pa.Table.from_pylist(rows), folder / "prompts.parquet")
    meta = ShardMeta(verifier="v", layers=LAYERS, hidden_size=128, engine="fake bfloat16", config_hash="c")
    ranges = ((0, 4), (4, 8), (8, 12))
    return Job(str(folder / "prompts.parquet"), "", ranges, Sampling(16), True, 1024, meta)


def extract(job: Job, verifier: Path, out: Path, *, poison: bool, may_lose: float = 0.1) -> dict[int, ManifestRow]:
    extra = {"die_on_token": TILDE} if poison else {}
    config = EngineConfig(kind=EngineKind.fake, max_model_len=1024, num_cpus=1, num_gpus=0, extra=extra)
    spec = EngineSpec(str(verifier), config, capture_layers=LAYERS)
    cfg = ExtractConfig(workers=WorkersConfig(1, 2), max_lost_fraction=may_lose)
    todo = [shard for shard in range(3) if not list(out.glob(f"part-{shard:05d}-*.parquet"))]
    return {row.shard: row for row in run_pool(spec, replace(job, out=str(out)), todo, cfg, "extract")}


def test_a_poisonous_sample_goes_to_the_dead_letters_and_the_rest_is_as_if_it_had_not_been(
    job: Job, local_ray: None, tiny_llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "calm").mkdir()
    (tmp_path / "out").mkdir()
    calm = extract(job, tiny_llama, tmp_path / "calm", poison=False)
    with caplog.at_level(logging.WARNING):
        found = extract(job, tiny_llama, tmp_path / "out", poison=True)
    assert [found[shard].sha256 for shard in (0, 2)] == [calm[shard].sha256 for shard in (0, 2)]
    assert (found[1].dropped, found[1].samples, found[1].samples_in) == ({"dead_letter": 1}, 3, 4)
    (letter,) = read_dead_letters(tmp_path / "out")
    assert (letter["sample"], letter["id"]) == (POISON, f"s/{POISON}")
    (ours,), (theirs,) = ([*(tmp_path / side).glob("part-00001-*.parquet")] for side in ("out", "calm"))
    wanted = {s.sample: s for s in read_samples(theirs) if s.sample != POISON}
    for sample in read_samples(ours):
        other = wanted.pop(sample.sample)
        assert sample.token_ids.tolist() == other.token_ids.tolist()
        assert (sample.hidden_states == other.hidden_states).all()
    assert not wanted and not list((tmp_path / "out" / "attempts").iterdir())
    assert sum("a worker died" in line for line in caplog.messages) == 6  # three, and three at its turn
    assert not (tmp_path / "out" / "workers").exists()

    # where nothing may be lost the run ends, says which prompt it is, and keeps what is done
    again = tmp_path / "strict"
    again.mkdir()
    with pytest.raises(
        RuntimeError, match=rf"conversations \[{POISON}\] took the engine down.*extract.max_lost_fraction"
    ):
        extract(job, tiny_llama, again, poison=True, may_lose=0)
    finished = extract(job, tiny_llama, again, poison=False, may_lose=0)  # with another engine it has one more turn
    assert finished[1].sha256 == calm[1].sha256
