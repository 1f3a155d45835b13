"""A training worker that writes down which samples each step reads, and takes its time over a step."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER, PACE = "rows", "pace"  # below the output root: the lines of each attempt, and seconds for a step


def recorded(config: dict[str, Any]) -> None:
    """The entry point of a worker, in the place of actors/training.py's."""
    import os

    import ray.train

    from actors import train_loop
    from actors.step_sampler import StepSampler
    from actors.train_position import Position

    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    root = Path(config["job"].out).parents[1]
    pace = float((root / PACE).read_text())
    (root / FOLDER).mkdir(exist_ok=True)
    file = root / FOLDER / f"{rank}-{os.getpid()}-{time.time_ns()}"
    rows_of, resume = StepSampler.__iter__, Position.resume
    training: list[StepSampler] = []

    def note(sampler: StepSampler) -> Iterator[list[int]]:
        first = sampler._skipped()
        for number, row in enumerate(rows_of(sampler), first):
            if sampler in training:
                with file.open("a") as lines:
                    lines.write(json.dumps([time.time(), world, rank, sampler._epoch, number, row]) + "\n")
                time.sleep(pace)
            yield row

    def mark(position: Position) -> None:
        resume(position)
        training.append(position._sampler())

    StepSampler.__iter__, Position.resume = note, mark  # type: ignore[method-assign]
    train_loop.train_worker(config)


def data_order(root: Path) -> dict[tuple[int, int], list[int]]:
    """Samples of each step that counts, all workers together: by epoch and step, those of its last attempt."""
    lines = sorted(
        json.loads(line)
        for file in (root / FOLDER).iterdir()
        for line in file.read_text().splitlines()
        if line.endswith("]")  # a killed worker may leave half of one
    )
    last: dict[tuple[int, int], dict[int, list[int]]] = {}
    worlds: dict[tuple[int, int], int] = {}
    for _, world, rank, epoch, step, row in lines:
        if worlds.get((epoch, step)) != world:
            last[epoch, step], worlds[epoch, step] = {}, world
        last[epoch, step][rank] = row
    return {step: sorted(sample for row in ranks.values() for sample in row) for step, ranks in last.items()}
