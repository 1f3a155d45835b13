"""Mixes sources of prompts, and splits what was chosen (pure, seeded, no hashes: the same on every machine)."""

import random
from collections.abc import Iterator

from workflows.conversation import Conversation


def interleaved(pools: dict[str, list[Conversation]]) -> Iterator[tuple[str, Conversation]]:
    """All conversations so that every prefix takes from each source in proportion to its size.

    The j-th of a source's n stands at (j + 1/2) / n on a line from 0 to 1; they are read off in the order of the line.
    """
    spread = sorted(
        ((j + 0.5) / len(pool), rank, j, name)
        for rank, (name, pool) in enumerate(pools.items())
        for j in range(len(pool))
    )
    return ((name, pools[name][j]) for _, _, j, name in spread)


def split(count: int, val_fraction: float, seed: int) -> list[str]:
    """train or val of each conversation: a seeded draw, with at least one of each unless val_fraction is 0."""
    if val_fraction == 0:
        return ["train"] * count
    if count == 1:
        raise ValueError(
            "prompts.sources leave one prompt, too few to split; add prompts or set prompts.val_fraction=0"
        )
    num_val = min(max(1, round(count * val_fraction)), count - 1)
    val = set(random.Random(f"{seed}/split").sample(range(count), num_val))
    return ["val" if i in val else "train" for i in range(count)]
