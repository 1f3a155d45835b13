"""Which samples an optimizer step reads, the same for any number of workers (pure).

Samples are shuffled by seed and epoch and packed into `bins` bins a step; worker r of w reads its bins/w of them as one
row. Only who reads a bin depends on the workers, so a run may go on with more or fewer of them at any step.
"""

from collections.abc import Iterator, Sequence
from heapq import heapreplace

import numpy as np

Bins = list[list[int]]  # sample indices


class StepSampler:
    """Rows of one worker, as a DataLoader's `batch_sampler`; speculators' trainer calls `set_epoch`.

    An epoch reads every sample once. Its last step may hold fewer samples than bins, and then some worker's row is
    empty: it takes part in the step, since all must, and weighs nothing (see row_weight.py).
    """

    def __init__(
        self, lengths: Sequence[int], bin_tokens: int, bins: int, *, seed: int, rank: int = 0, world: int = 1
    ) -> None:
        if bins % world:
            raise ValueError(f"train.num_workers: {world} does not divide train.bins {bins}; use a divisor")
        self._lengths = np.minimum(np.asarray(lengths, dtype=np.int64), bin_tokens)
        self._bin_tokens, self._bins, self._seed = bin_tokens, bins, seed
        self._mine = slice(rank * bins // world, (rank + 1) * bins // world)
        self._epoch = 0
        self._begin = (0, 0)
        self._cached: tuple[int, list[Bins]] = (-1, [])

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def start(self, epoch: int, step: int) -> None:
        """Skip the first `step` steps of `epoch`, and of no other."""
        self._begin = (epoch, step)

    def __len__(self) -> int:
        return len(self.steps(self._epoch)) - self._skipped()

    def __iter__(self) -> Iterator[list[int]]:
        for step in self.steps(self._epoch)[self._skipped() :]:
            yield [index for samples in step[self._mine] for index in samples]

    def steps(self, epoch: int) -> list[Bins]:
        """The bins of every step of an epoch, all workers together."""
        if self._cached[0] != epoch:
            order = np.random.default_rng((self._seed, epoch)).permutation(len(self._lengths))
            packed = pack(self._lengths[order], self._bin_tokens, self._bins)
            self._cached = (epoch, [[order[samples].tolist() for samples in step] for step in packed])
        return self._cached[1]

    def _skipped(self) -> int:
        epoch, step = self._begin
        return step if epoch == self._epoch else 0


def pack(lengths: np.ndarray, bin_tokens: int, bins: int) -> Iterator[list[np.ndarray]]:
    """Positions in `lengths`, `bins` bins of at most `bin_tokens` for each step; only the last may have empty ones.

    A step takes as many of the next samples as greedy packing can hold, found by bisection: what speculators'
    MultipackDistributedBatchSamplerV2 does, which leaves out a last step with empty bins.
    """
    total, begin, turn = np.cumsum(lengths), 0, 0
    while begin < len(lengths):
        before = total[begin - 1] if begin else 0
        fits = min(bins, len(lengths) - begin)  # one in each bin always fits
        too_many = int(np.searchsorted(total, before + bins * bin_tokens, "right")) - begin + 1
        found = _fill(lengths[begin : begin + fits], bin_tokens, bins)
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            if tried := _fill(lengths[begin : begin + middle], bin_tokens, bins):
                fits, found = middle, tried
            else:
                too_many = middle
        # the first bin gets the longest sample: they take turns, so that no worker always has few long ones
        yield [np.asarray(found[(slot + turn) % bins], dtype=np.int64) + begin for slot in range(bins)]
        begin, turn = begin + fits, turn + 1


def _fill(lengths: np.ndarray, bin_tokens: int, bins: int) -> Bins:
    """The longest first, each into the emptiest bin; nothing when one does not fit."""
    filled: Bins = [[] for _ in range(bins)]
    emptiest = [(0, slot) for slot in range(bins)]  # a heap of tokens and slot
    for index in np.argsort(-lengths, kind="stable").tolist():
        tokens, slot = emptiest[0][0] + int(lengths[index]), emptiest[0][1]
        if tokens > bin_tokens:
            return []
        filled[slot].append(index)
        heapreplace(emptiest, (tokens, slot))
    return filled
