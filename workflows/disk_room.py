"""Will the shards of an extraction fit? Asked before an engine starts (pure).

Before a shard exists only limits are known, and answers are mostly shorter: what exceeds the disk by them is a warning.
An error is what must fail, or what fails by the shortest conversations that were committed.
"""

import logging
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

from actors.capture import Job
from actors.disk import KEY, ROW_BYTES, Budget, free_bytes, shard_bytes
from actors.shards import ManifestRow
from actors.units import gib
from workflows.footprint import Data

log = logging.getLogger(__name__)


def check_room(job: Job, done: dict[int, ManifestRow]) -> None:
    """Warn when the shards that are not `done` may not fit; DiskFull when not even one of them does."""
    todo = [shard for shard in range(job.num_shards) if shard not in done]
    if job.meta is None or not todo:
        return
    budget = Budget(Path(job.out), job.num_shards, job.disk_budget)
    left = budget.left()
    if (least := min(_least(job, shard, done) for shard in todo)) > left:
        raise budget.full(least)
    expected = _expected(job, todo, done)
    assert expected.states is not None
    if expected.states > left:
        within = f"of {KEY}" if job.disk_budget is not None and left < free_bytes(budget.folder) else f"below {job.out}"
        log.warning(
            "extract: %d conversations of %s %d tokens need %s GiB, and %s are left %s. It begins all the same, and "
            "when there is no room for a shard it stops with what is committed; to be sure, make room now",
            expected.conversations, "about" if done else "at most", expected.tokens_each, gib(expected.states),
            gib(left), within,
        )  # fmt: skip


def _expected(job: Job, todo: list[int], done: dict[int, ManifestRow]) -> Data:
    """The shards to do, as the committed ones are, or at the limits."""
    assert job.meta
    conversations = sum(_conversations(job, shard) for shard in todo)
    before = sum(row.samples_in for row in done.values())
    each = sum(row.rows for row in done.values()) / before if before else _longest(job)
    size = max(end - begin for begin, end in job.ranges)
    return Data(conversations, round(each), job.meta.row_bytes + ROW_BYTES, size, training=0)


def _longest(job: Job) -> float:
    """Mean tokens of a conversation when every answer has the length that it may have."""
    table = pq.read_table(job.prompts, columns=["num_tokens", "messages"])
    turns = [sum(message["role"] == "user" for message in messages) for messages in table["messages"].to_pylist()]
    lengths = zip(table["num_tokens"].to_pylist(), turns, strict=True)
    return sum(min(job.max_model_len, n + t * job.sampling.max_new_tokens) for n, t in lengths) / len(turns)


def _least(job: Job, shard: int, done: dict[int, ManifestRow]) -> int:
    """Bytes that a shard takes for certain: its prompts alone; or with conversations as short as any before."""
    assert job.meta
    rates = [row.rows / row.samples_in for row in done.values()]
    if rates:
        return shard_bytes(int(min(rates) * _conversations(job, shard)), job.meta.row_bytes)
    begin, end = job.ranges[shard]
    tokens = pq.read_table(job.prompts, columns=["num_tokens"])["num_tokens"].slice(begin, end - begin)
    return shard_bytes(pc.sum(tokens).as_py(), job.meta.row_bytes)


def _conversations(job: Job, shard: int) -> int:
    begin, end = job.ranges[shard]
    return end - begin
