"""From prompts or finished conversations to committed shards: what an extraction worker does, without Ray (pure).

`T` tokens have states; the last token of a conversation has none and is not stored.
"""

import asyncio
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from actors.engine import Engine, Message, Sampling
from actors.responses import Response, commit_responses, read_responses, response_name
from actors.rollout import Rollout, roll_out
from actors.shards import ManifestRow, SampleStates, ShardMeta, commit

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

    @property
    def num_shards(self) -> int:
        return len(self.ranges)


async def run_shard(engine: Engine, job: Job, shard: int) -> ManifestRow:
    """Do and commit one shard; the row of whoever committed it first."""
    dropped: Counter[str] = Counter()
    if job.responses:
        done = await _prefill(engine, job, shard)
    else:
        done = await _answer(engine, job, shard, dropped)
    if job.meta is None:
        return commit_responses(Path(job.out), shard, job.num_shards, [_response(n, r) for n, r in done], dropped)
    samples = []
    for number, rollout in done:
        assert rollout.hidden_states is not None
        if not finite(rollout.hidden_states):
            dropped["not_finite"] += 1
            continue
        length = len(rollout.hidden_states)
        samples.append(
            SampleStates(number, rollout.token_ids[:length], rollout.loss_mask[:length], rollout.hidden_states)
        )
    return commit(Path(job.out), shard, job.num_shards, samples, job.meta, dict(dropped))


def finite(states: np.ndarray) -> bool:
    """Whether bf16 bits hold neither infinities nor NaNs."""
    return not bool(((states & BF16_EXPONENT) == BF16_EXPONENT).any())


async def _answer(engine: Engine, job: Job, shard: int, dropped: Counter[str]) -> list[tuple[int, Rollout]]:
    """Every conversation of the shard at once: the engine batches them."""
    begin, end = job.ranges[shard]
    table = pq.read_table(job.prompts, columns=["sample", "id", "messages"]).slice(begin, end - begin)

    async def one(row: dict) -> Rollout | None:
        messages: list[Message] = row["messages"]
        return await roll_out(
            engine,
            messages,
            _seeded(job.sampling, row["id"]),
            max_model_len=job.max_model_len,
            capture=job.meta is not None,
        )

    rows = table.to_pylist()
    kept = []
    for row, rollout in zip(rows, await asyncio.gather(*(one(row) for row in rows)), strict=True):
        if rollout is None:
            dropped["too_long"] += 1
        elif rollout.finish_reason != "stop" and not job.keep_truncated:
            dropped["truncated"] += 1
        elif len(rollout.token_ids) < 3 or not rollout.loss_mask[:-1].any():
            dropped["empty"] += 1  # nothing to learn from: the only answer token has no state
        else:
            kept.append((row["sample"], rollout))
    return kept


async def _prefill(engine: Engine, job: Job, shard: int) -> list[tuple[int, Rollout]]:
    """States of conversations that the generate step left."""
    assert job.responses
    responses = read_responses(Path(job.responses) / response_name(shard, job.num_shards))
    one_token = Sampling(max_new_tokens=1)

    async def one(response: Response) -> Rollout:
        ids = response.token_ids
        completion = await engine.generate(ids[:-1].tolist(), one_token, capture=True)
        if completion.prompt_ids != ids[:-1].tolist():
            raise RuntimeError(f"sample {response.sample}: the engine read other tokens than it was given")
        return Rollout(ids, response.loss_mask, completion.hidden_states, response.finish_reason, 0)

    rollouts = await asyncio.gather(*(one(r) for r in responses))
    return [(r.sample, rollout) for r, rollout in zip(responses, rollouts, strict=True)]


def _seeded(sampling: Sampling, sample_id: str) -> Sampling:
    """A seed of the sample's own, so that what it says does not depend on who else is in the batch."""
    if sampling.temperature == 0:
        return sampling
    seed = zlib.crc32(f"{sampling.seed}/{sample_id}".encode())
    return Sampling(sampling.max_new_tokens, sampling.temperature, sampling.top_p, seed)


def _response(sample: int, rollout: Rollout) -> Response:
    return Response(sample, rollout.token_ids, rollout.loss_mask, rollout.finish_reason)
