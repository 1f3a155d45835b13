"""Which samples a step reads: the same for any number of workers, each once an epoch, as tight as speculators packs."""

import itertools
import warnings

import numpy as np
import pytest
from speculators.train.distributed_batch_sampler import MultipackDistributedBatchSamplerV2

from actors.step_sampler import StepSampler

BINS, BIN_TOKENS = 4, 1000


def lengths(count: int = 500) -> list[int]:
    """Of conversations: log-normal, with some at the limit."""
    drawn = np.random.default_rng(3).lognormal(np.log(200), 0.7, count)
    return np.clip(drawn, 5, BIN_TOKENS).astype(int).tolist()


def workers(world: int, count: int = 500, seed: int = 0) -> list[StepSampler]:
    return [StepSampler(lengths(count), BIN_TOKENS, BINS, seed=seed, rank=r, world=world) for r in range(world)]


def rows(world: int, epoch: int = 0, count: int = 500, seed: int = 0) -> list[list[list[int]]]:
    """Of each step, the row of each worker."""
    samplers = workers(world, count, seed)
    for sampler in samplers:
        sampler.set_epoch(epoch)
    return [list(step) for step in zip(*samplers, strict=True)]


def samples(step: list[list[int]]) -> list[int]:
    return sorted(itertools.chain(*step))


@pytest.mark.parametrize("epoch", [0, 3])
@pytest.mark.parametrize("world", [2, 4])
def test_a_step_reads_the_same_samples_for_any_number_of_workers(world: int, epoch: int) -> None:
    alone = rows(1, epoch)
    assert len(alone) > 20
    assert [samples(step) for step in rows(world, epoch)] == [samples(step) for step in alone]


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("count", [500, 1, 3, 4, 5])
def test_an_epoch_reads_every_sample_once_and_no_row_is_too_long(world: int, count: int) -> None:
    size = lengths(count)
    for epoch in range(3):
        steps = rows(world, epoch, count)
        assert samples([row for step in steps for row in step]) == list(range(count))
        assert all(sum(size[i] for i in row) <= BINS // world * BIN_TOKENS for step in steps for row in step)
        assert all(row for step in steps[:-1] for row in step)  # empty rows only at the end of an epoch


def test_no_samples_are_no_steps() -> None:
    assert len(StepSampler([], 10, 2, seed=0)) == 0


def test_each_epoch_and_seed_has_its_own_order() -> None:
    first = rows(1)
    assert rows(1) == first
    assert rows(1, epoch=1) != first and rows(1, seed=1) != first
    assert rows(1, epoch=1) != rows(1, seed=1)  # speculators adds the two


@pytest.mark.parametrize("world", [1, 2])
def test_a_start_skips_steps_of_its_epoch_only(world: int) -> None:
    whole, next_epoch = rows(world), rows(world, epoch=1)
    for rank, sampler in enumerate(workers(world)):
        sampler.start(0, 7)
        sampler.set_epoch(0)
        assert list(sampler) == [step[rank] for step in whole[7:]] and len(sampler) == len(whole) - 7
        sampler.set_epoch(1)
        assert list(sampler) == [step[rank] for step in next_epoch] and len(sampler) == len(next_epoch)


def test_no_more_is_padded_than_by_speculators() -> None:
    """As many steps as its own sampler makes of the same order, or one more: it leaves out the last few samples."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        theirs = [MultipackDistributedBatchSamplerV2(BIN_TOKENS, lengths(), BINS, r, seed=0) for r in range(BINS)]
    steps = [samples([row.tolist() for row in step]) for step in zip(*theirs, strict=True)]
    found = [samples(step) for step in rows(BINS)]
    assert found[: len(steps)] == steps and len(found) - len(steps) in (0, 1)


def test_workers_take_turns_with_the_longest_samples() -> None:
    size = np.array(lengths())
    counts = np.array([[len(row) for row in step] for step in rows(BINS)[:-1]]).sum(axis=0)
    assert counts.max() < 1.2 * counts.min()
    longest = [int(np.argmax([size[row].max() for row in step])) for step in rows(BINS)[:-1]]
    assert {longest.count(rank) > 0 for rank in range(BINS)} == {True}


def test_workers_that_do_not_divide_the_bins_are_refused() -> None:
    with pytest.raises(ValueError, match=r"train\.num_workers: 3 does not divide train\.bins 4"):
        StepSampler(lengths(), BIN_TOKENS, BINS, seed=0, rank=0, world=3)
