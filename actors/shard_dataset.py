"""Committed shards as a speculators data set: memory-mapped, one item a conversation; those of a store from a cache.

Shapes: T tokens, A aux layers, H hidden size.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from speculators.train.data import BaseDataset

from actors.contexts import LONGEST, Context
from actors.shard_cache import ShardCache
from actors.shard_store import is_uri, read_columns
from actors.shards import SampleStates, read_samples

OPEN_SHARDS = 64  # kept decoded by each reader; their pages are the system's to drop


class ShardDataset(BaseDataset):
    """Samples of `shards` whose number is in `samples`, cut at `max_len` tokens, in the order of the shards."""

    def __init__(
        self,
        shards: Sequence[str],
        samples: set[int],
        max_len: int,
        dtype: torch.dtype,
        cache: ShardCache | None = None,
    ):
        self._index: list[tuple[str, int]] = []  # (path or URI, place in it)
        self._cache = cache or ShardCache(None, None)
        self._lengths: list[int] = []
        self._samples: list[int] = []
        for file in shards:
            counts = read_columns(file, ["sample"])["sample"].value_counts().to_pylist()
            tokens = {entry["values"]: entry["counts"] for entry in counts}
            # value_counts keeps the order of first appearance, which is the order of read_samples
            for place, (sample, length) in enumerate(tokens.items()):
                if sample in samples:
                    self._index.append((file, place))
                    self._lengths.append(min(length, max_len))
                    self._samples.append(sample)
        super().__init__(max_len, dtype)

    def __len__(self) -> int:
        return len(self._index)

    def sample(self, index: int) -> int:
        """Number of the conversation at `index`."""
        return self._samples[index]

    def context(self, index: int) -> Context:
        """What precedes the first answer of the conversation at `index`, with the states of its first tokens."""
        file, place = self._index[index]
        sample = _open(file, self._cache)[place]
        prompt = int(sample.loss_mask.argmax())
        states = sample.hidden_states[: min(prompt, LONGEST), :-1]
        return Context(sample.sample, sample.token_ids[:prompt].copy(), states.copy())

    def _compute_approx_lengths(self) -> list[int]:
        # one less: speculators pairs each state with the token after it
        return [max(1, length - 1) for length in self._lengths]

    def _get_raw_data(self, index: int) -> dict[str, Any]:
        """hidden_states [T, A*H], verifier_last_hidden_states [T, H], input_ids [T], loss_mask [T]."""
        file, place = self._index[index]
        sample = _open(file, self._cache)[place]
        length = self._lengths[index]
        states = torch.from_numpy(sample.hidden_states[:length].copy()).view(torch.bfloat16)
        return {
            "hidden_states": states[:, :-1].flatten(1),
            "input_ids": torch.from_numpy(sample.token_ids[:length].copy()).long(),
            "verifier_last_hidden_states": states[:, -1],
            "loss_mask": torch.from_numpy(sample.loss_mask[:length].copy()),
        }


@lru_cache(maxsize=OPEN_SHARDS)
def _open(file: str, cache: ShardCache) -> list[SampleStates]:
    return cache.read(file, read_samples) if is_uri(file) else read_samples(Path(file))
