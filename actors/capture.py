"""From prompts or finished conversations to committed shards: what an extraction worker does, without Ray (pure).

`T` tokens have states; the last token of a conversation has none and is not stored.
"""

import asyncio
import logging
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from actors.dead_letters import write_dead_letters
from actors.disk import Budget, shard_bytes
from actors.engine import Engine, Message, Sampling, StatesMismatch
from actors.responses import Response, commit_responses, read_responses, response_name
from actors.rollout import Rollout, roll_out
from actors.shard_gate import ShardGate, write_gate
from actors.shard_store import commit_to
from actors.shards import ManifestRow, SampleStates, ShardMeta, commit, to_table, with_account
from actors.suspects import SAMPLE_DEATHS, Suspects

log = logging.getLogger(__name__)
BF16_EXPONENT = np.uint16(0x7F80)  # all ones: infinity or NaN


@dataclass(frozen=True)
class Job:
    """One step's work over fixed shards. Small and picklable: it travels as an actor's argument.

    `ranges[i]` are the rows of prompts.parquet of shard i. `responses` is the folder of the generate step for a
    second pass; None means that answers are generated here. `meta` None: generate only, without states.
    """

    prompts: str  # prompts.parquet
    out: str
    ranges: tuple[tuple[int, int], ...]
    sampling: Sampling
    keep_truncated: bool
    max_model_len: int
    meta: ShardMeta | None = None
    responses: str | None = None
    disk_budget: int | None = None  # bytes of all shards; None: what the file system has
    store: str | None = None  # URI of the shards of states, when they do not lie in `out`
    gate_samples: int = 0  # of each shard, read again before it is committed (actors/capture_gate.py)
    gate_hf: bool = False  # against a Hugging Face forward, too
    shown: tuple[int, ...] = ()  # samples whose tokens the report shows

    @property
    def num_shards(self) -> int:
        return len(self.ranges)


@dataclass(frozen=True)
class Care:
    """How to run a shard whose engine died before: without the samples in `lost`, and `singly`, one after the other,
    each named in a file before its turn (actors/suspects.py)."""

    singly: bool = False
    lost: tuple[int, ...] = ()


async def run_shard(
    engine: Engine, job: Job, shard: int, care: Care = Care(), gate: ShardGate | None = None
) -> ManifestRow:
    """Do and commit one shard, once `gate` has let it pass; the row of whoever committed it first."""
    dropped: Counter[str] = Counter()
    done = await (_prefill if job.responses else _answer)(engine, job, shard, care, dropped)
    if care.lost:
        dropped["dead_letter"] = _bury(job, shard, care)
    if job.meta is None:
        return commit_responses(Path(job.out), shard, job.num_shards, [_response(n, r) for n, r in done], dropped)
    kept = [(number, rollout) for number, rollout in done if finite(rollout.states)]
    if len(kept) < len(done):
        dropped["not_finite"] = len(done) - len(kept)
    if gate:
        await _inspect(gate, engine, job, shard, kept)
    samples = [SampleStates(number, r.token_ids[:-1], r.loss_mask[:-1], r.states) for number, r in kept]
    # in a thread: gigabytes take seconds, and the engine's other requests are served by this loop
    return await asyncio.to_thread(_commit, job, shard, samples, dict(dropped))


async def _inspect(gate: ShardGate, engine: Engine, job: Job, shard: int, kept: list[tuple[int, Rollout]]) -> None:
    shown = [row for row in _prompts(job, shard, ["sample", "source", "messages"]) if gate.shows(row["sample"])]
    conversations = {row["sample"]: (row["source"], row["messages"]) for row in shown}
    write_gate(Path(job.out), shard, job.num_shards, await gate.inspect(engine, kept, conversations))


def _commit(job: Job, shard: int, samples: list[SampleStates], dropped: dict[str, int]) -> ManifestRow:
    assert job.meta
    if job.store:
        table = with_account(to_table(samples, job.meta), len(samples), dropped)
        return commit_to(job.store, shard, job.num_shards, table)
    rows = sum(len(sample.token_ids) for sample in samples)
    with Budget(Path(job.out), job.num_shards, job.disk_budget).room(shard, shard_bytes(rows, job.meta.row_bytes)):
        return commit(Path(job.out), shard, job.num_shards, samples, job.meta, dropped)


def finite(states: np.ndarray) -> bool:
    """Whether bf16 bits hold neither infinities nor NaNs."""
    return not bool(((states & BF16_EXPONENT) == BF16_EXPONENT).any())


async def _answer(engine: Engine, job: Job, shard: int, care: Care, dropped: Counter[str]) -> list[tuple[int, Rollout]]:
    """Answers to the prompts of the shard."""

    async def one(row: dict) -> Rollout | str:
        messages: list[Message] = row["messages"]
        sampling = _seeded(job.sampling, row["id"])
        capture = job.meta is not None
        rollout = await roll_out(engine, messages, sampling, max_model_len=job.max_model_len, capture=capture)
        if rollout is None:
            return "too_long"
        if rollout.finish_reason != "stop" and not job.keep_truncated:
            return "truncated"
        if len(rollout.token_ids) < 3 or not rollout.loss_mask[:-1].any():
            return "empty"  # nothing to learn from: the only answer token has no state
        return rollout

    rows = {row["sample"]: row for row in _prompts(job, shard, ["sample", "id", "messages"])}
    return await _each(rows, one, job, shard, care, dropped)


async def _prefill(
    engine: Engine, job: Job, shard: int, care: Care, dropped: Counter[str]
) -> list[tuple[int, Rollout]]:
    """States of conversations that the generate step left."""
    assert job.responses
    one_token = Sampling(max_new_tokens=1)

    async def one(response: Response) -> Rollout | str:
        ids = response.token_ids
        completion = await engine.generate(ids[:-1].tolist(), one_token, capture=True)
        if completion.prompt_ids != ids[:-1].tolist():
            raise StatesMismatch(f"sample {response.sample}: the engine read other tokens than it was given")
        return Rollout(ids, response.loss_mask, completion.hidden_states, response.finish_reason, 0)

    responses = read_responses(Path(job.responses) / response_name(shard, job.num_shards))
    return await _each({r.sample: r for r in responses}, one, job, shard, care, dropped)


async def _each(
    rows: dict[int, Any],
    one: Callable[[Any], Awaitable[Rollout | str]],
    job: Job,
    shard: int,
    care: Care,
    dropped: Counter[str],
) -> list[tuple[int, Rollout]]:
    """`one` of every row that is not lost: all at once, so that the engine batches them, or one after the other.

    What it refuses, by a reason or for states that are not the tokens', is counted in `dropped`.
    """

    async def kept(sample: int) -> Rollout | str:
        try:
            return await one(rows[sample])
        except StatesMismatch as error:
            log.warning("shard %d: sample %d is dropped: %s", shard, sample, error)
            return "token_mismatch"

    samples = [sample for sample in rows if sample not in care.lost]
    if care.singly:
        suspects, results = Suspects(Path(job.out)), []
        for sample in samples:
            suspects.turn(shard, sample)
            results.append(await kept(sample))
        suspects.over(shard)
    else:
        results = list(await asyncio.gather(*(kept(sample) for sample in samples)))
    dropped.update(result for result in results if isinstance(result, str))
    pairs = zip(samples, results, strict=True)
    return [(sample, result) for sample, result in pairs if not isinstance(result, str)]


def _bury(job: Job, shard: int, care: Care) -> int:
    """Leave the shard's lost samples among the dead letters; returns how many."""
    error = f"the engine died {SAMPLE_DEATHS} times while it worked on this sample alone"
    rows = [row for row in _prompts(job, shard, ["sample", "id"]) if row["sample"] in care.lost]
    write_dead_letters(Path(job.out), shard, [(row["sample"], row["id"], error) for row in rows])
    return len(rows)


def _prompts(job: Job, shard: int, columns: list[str]) -> list[dict]:
    begin, end = job.ranges[shard]
    return pq.read_table(job.prompts, columns=columns).slice(begin, end - begin).to_pylist()


def _seeded(sampling: Sampling, sample_id: str) -> Sampling:
    """A seed of the sample's own, so that what it says does not depend on who else is in the batch."""
    if sampling.temperature == 0:
        return sampling
    seed = zlib.crc32(f"{sampling.seed}/{sample_id}".encode())
    return Sampling(sampling.max_new_tokens, sampling.temperature, sampling.top_p, seed)


def _response(sample: int, rollout: Rollout) -> Response:
    return Response(sample, rollout.token_ids, rollout.loss_mask, rollout.finish_reason)
