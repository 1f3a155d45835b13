"""Shards as a training data set: what an item holds, which conversations, in which order, cut where."""

from pathlib import Path

import numpy as np
import pytest
import torch

from actors.shard_dataset import ShardDataset
from actors.shards import SampleStates, ShardMeta, commit, shard_name

META = ShardMeta(verifier="v", layers=(1, 2, 4), hidden_size=8, engine="fake", config_hash="c")
LENGTHS = {7: 5, 3: 12, 8: 9, 1: 6, 0: 4}  # sample to tokens, in the order of the shards


def sample(number: int) -> SampleStates:
    draw = np.random.default_rng(number)
    tokens = LENGTHS[number]
    values = draw.standard_normal((tokens, 3, 8)).astype(np.float32)
    states = (values.view(np.uint32) >> 16).astype(np.uint16)
    return SampleStates(number, draw.integers(0, 500, tokens).astype(np.int32), draw.random(tokens) < 0.5, states)


@pytest.fixture
def shards(tmp_path: Path) -> list[str]:
    """Samples 7, 3, 8 and 1, 0, with an empty shard between."""
    for shard, numbers in enumerate([(7, 3, 8), (), (1, 0)]):
        commit(tmp_path, shard, 3, [sample(n) for n in numbers], META, {} if numbers else {"too_long": 1})
    return [str(tmp_path / shard_name(shard, 3)) for shard in range(3)]


def test_an_item_is_one_conversation_in_speculators_shapes(shards: list[str]) -> None:
    item = ShardDataset(shards, set(LENGTHS), 100, torch.bfloat16)[1]
    wanted = sample(3)
    assert item["input_ids"].dtype == torch.int64 and item["input_ids"].tolist() == wanted.token_ids.tolist()
    assert item["loss_mask"].dtype == torch.bool and item["loss_mask"].tolist() == wanted.loss_mask.tolist()
    assert item["hidden_states"].shape == (12, 2 * 8) and item["verifier_last_hidden_states"].shape == (12, 8)
    assert item["hidden_states"].dtype == item["verifier_last_hidden_states"].dtype == torch.bfloat16
    bits = torch.cat([item["hidden_states"], item["verifier_last_hidden_states"]], dim=1).view(torch.int16)
    assert np.array_equal(bits.numpy().view(np.uint16), wanted.hidden_states.reshape(12, -1))  # layer-major
    assert item["lengths"].tolist() == [12] and item["position_ids"].tolist() == list(range(12))


def test_conversations_come_in_the_order_of_the_shards(shards: list[str]) -> None:
    data = ShardDataset(shards, set(LENGTHS), 100, torch.bfloat16)
    assert [len(data[i]["input_ids"]) for i in range(len(data))] == list(LENGTHS.values())
    assert data.approx_lengths == [n - 1 for n in LENGTHS.values()]  # each state is paired with the token after it
    backwards = ShardDataset(shards[::-1], set(LENGTHS), 100, torch.bfloat16)
    assert [len(backwards[i]["input_ids"]) for i in range(len(backwards))] == [6, 4, 5, 12, 9]


def test_only_the_chosen_samples_are_in_it(shards: list[str]) -> None:
    data = ShardDataset(shards, {8, 0, 99}, 100, torch.bfloat16)
    assert len(data) == 2
    assert [item["input_ids"].tolist() for item in (data[0], data[1])] == [
        sample(8).token_ids.tolist(),
        sample(0).token_ids.tolist(),
    ]
    assert len(ShardDataset(shards, {99}, 100, torch.bfloat16)) == 0


def test_long_conversations_are_cut(shards: list[str]) -> None:
    data = ShardDataset(shards, {3, 0}, 6, torch.bfloat16)
    assert data.approx_lengths == [5, 3]
    for key in ("input_ids", "loss_mask", "hidden_states", "verifier_last_hidden_states"):
        whole = ShardDataset(shards, {3}, 100, torch.bfloat16)[0][key]
        assert torch.equal(data[0][key], whole[:6])


def test_an_item_may_be_changed_without_harm_to_the_shard(shards: list[str]) -> None:
    data = ShardDataset(shards, {7}, 100, torch.bfloat16)
    first = data[0]["hidden_states"].clone()
    for tensor in data[0].values():
        tensor.zero_()
    assert torch.equal(data[0]["hidden_states"], first)
