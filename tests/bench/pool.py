"""What the pool of extraction workers costs, and how busy it keeps them: python -m tests.bench.pool

`cost` puts the same shards through a bare loop over the engine, through the pool with one worker, and through the pool
with the gates of extraction on, in turns, and compares the time from the first commit to the last: neither Ray's start
nor the engine's is in it. `busy` runs many
workers whose fake engines take realistic times, and asks each for the share of its life in which its engine had work.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import ray

from actors import shard_pool
from actors.capture import Job, run_shard
from actors.engine import EngineSpec, Sampling
from actors.shards import ShardMeta
from actors.start_engine import start
from actors.verifier import read_verifier
from conf.schema import EngineConfig, EngineKind, ExtractConfig, WorkersConfig
from tests.composed import typed
from tests.tiny import write_tiny_llama
from workflows import config
from workflows.tables import plain
from workflows.verifier_source import resolve_verifier

IN_FLIGHT = 2  # shards of a worker


def make_job(folder: Path, verifier: Path, layers: tuple[int, ...], shards: int, each: int, sampling: Sampling) -> Job:
    rows = [
        {
            "sample": i,
            "id": f"s/{i}",
            "source": "s",
            "messages": [{"role": "user", "content": f"What is {i} times {i + 7}, and why?"}],
        }
        for i in range(shards * each)
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "prompts.parquet")
    meta = ShardMeta("bench", layers, read_verifier(verifier).hidden_size, "bench", "c")
    ranges = tuple((i * each, (i + 1) * each) for i in range(shards))
    return Job(str(folder / "prompts.parquet"), "", ranges, sampling, True, 1024, meta)


def placed(job: Job, out: Path) -> Job:
    out.mkdir()
    return replace(job, out=str(out))


def bare(spec: EngineSpec, job: Job) -> None:
    """The loop that one would write without Eyrie."""

    async def every() -> None:
        engine, gate = start(spec), asyncio.Semaphore(IN_FLIGHT)

        async def one(shard: int) -> None:
            async with gate:
                await run_shard(engine, job, shard)

        await asyncio.gather(*(one(shard) for shard in range(job.num_shards)))
        engine.close()

    asyncio.run(every())


def pooled(spec: EngineSpec, job: Job, workers: int) -> list[float]:
    """The same through the pool; the busy share of each worker up to when there was no more work for all of them."""
    cfg = ExtractConfig(workers=WorkersConfig(1, workers), shards_in_flight=IN_FLIGHT)
    shares: list[float] = []
    all_busy = max(1, job.num_shards - workers * IN_FLIGHT)  # later the pool lets workers go
    with kept_actors() as actors:
        for number, _ in enumerate(shard_pool.run_pool(spec, job, list(range(job.num_shards)), cfg, "extract"), 1):
            if number == all_busy:
                shares = ray.get([actor.busy_share.remote() for actor in actors])
    return shares


@contextmanager
def kept_actors() -> Iterator[list[Any]]:
    """The handles of the workers that the pool makes."""
    actors, create = [], shard_pool._create

    def keep(*args: Any) -> Any:
        actors.append(create(*args))
        return actors[-1]

    shard_pool._create = keep
    try:
        yield actors
    finally:
        shard_pool._create = create


def committing_s(out: Path) -> float:
    times = sorted(file.stat().st_mtime for file in out.glob("part-*.parquet"))
    return times[-1] - times[0]


def figures(times: list[float]) -> tuple[float, float, float]:
    return statistics.median(times), min(times), max(times)


def cost(folder: Path, kind: str, shards: int, each: int, tokens: int, rounds: int, overrides: list[str]) -> str:
    """Shards of `each` answers of `tokens` tokens; `overrides` are those of the workflow, for vLLM."""
    if kind == "vllm":
        cfg = config.on_this_machine(typed("experiment=smollm2_cpu", f"output_root={folder / 'root'}", *overrides))
        verifier = Path(resolve_verifier(cfg.verifier, folder / "root").path)
        engine, layers = cfg.engine, (*cfg.draft.aux_layers, read_verifier(verifier).num_layers)
        job = make_job(folder, verifier, layers, shards, each, Sampling(tokens, ignore_eos=True))
    else:
        verifier, layers = write_tiny_llama(folder / "verifier"), (1, 2, 4)
        extra = {"seconds_per_token": 0.05}  # 20 tokens a second, for each of many requests
        engine = EngineConfig(kind=EngineKind.fake, max_model_len=1024, num_cpus=1, num_gpus=0, extra=extra)
        job = make_job(folder, verifier, layers, shards, each, Sampling(tokens))
    spec = EngineSpec(str(verifier), engine, capture_layers=layers)
    gated = replace(job, gate_samples=1, shown=tuple(range(5)))  # the defaults of extract.gate, one source
    arms = {
        "bare loop": lambda out: bare(spec, placed(job, out)),
        "pool": lambda out: pooled(spec, placed(job, out), 1),
        "pool with gates": lambda out: pooled(spec, placed(gated, out), 1),
    }
    took: dict[str, list[float]] = {name: [] for name in arms}
    ray.init("local", num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False)
    for number in range(rounds):
        for name, run in arms.items():
            out = folder / f"{name.replace(' ', '-')}-{number}"
            run(out)
            took[name].append(committing_s(out))
            print(f"{name}: {took[name][-1]:.2f} s from the first commit to the last of {shards}", flush=True)
    ray.shutdown()
    base = statistics.median(took["bare loop"])
    rows = [[name, *(f"{x:.2f}" for x in figures(t)), f"{figures(t)[0] / base - 1:+.1%}"] for name, t in took.items()]
    return plain([f"{kind} engine", "median s", "least", "most", "against the loop"], rows)


def busy(folder: Path, workers: int, shards_each: int, seconds_per_token: float) -> str:
    """An answer has up to 31 tokens, and a shard takes as long as its longest: about 28 times `seconds_per_token`."""
    verifier, layers = write_tiny_llama(folder / "verifier"), (1, 2, 4)
    extra = {"seconds_per_token": seconds_per_token}
    engine = EngineConfig(kind=EngineKind.fake, max_model_len=1024, num_cpus=1, num_gpus=0, extra=extra)
    job = make_job(folder, verifier, layers, workers * shards_each, 8, Sampling(64))
    ray.init(
        "local",
        num_cpus=workers,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=200 << 20,
        _system_config={"worker_register_timeout_seconds": 900},  # so many imports at once take minutes here
    )
    began = time.monotonic()
    shares = pooled(EngineSpec(str(verifier), engine, capture_layers=layers), placed(job, folder / "out"), workers)
    took = time.monotonic() - began
    ray.shutdown()
    row = [str(len(shares)), str(job.num_shards), f"{took:.0f}", f"{statistics.mean(shares):.1%}", f"{min(shares):.1%}"]
    return plain(["workers", "shards", "s, starts included", "mean busy share", "least"], [row])


def main() -> None:
    parser = argparse.ArgumentParser("python -m tests.bench.pool", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("cost")
    one.add_argument("--engine", choices=["fake", "vllm"], default="fake")
    one.add_argument("--shards", type=int, default=40)
    one.add_argument("--samples", type=int, default=16, help="of a shard")
    one.add_argument("--tokens", type=int, default=48, help="of an answer")
    one.add_argument("--rounds", type=int, default=3)
    one.add_argument("override", nargs="*", help="of the workflow, with --engine vllm: engine=vllm_gpu …")
    many = commands.add_parser("busy")
    many.add_argument("--workers", type=int, default=64)
    many.add_argument("--shards-each", type=int, default=8)
    many.add_argument("--seconds-per-token", type=float, default=1.2, help="a shard then takes half a minute")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        if args.command == "cost":
            shape = (args.shards, args.samples, args.tokens)
            print(cost(Path(folder), args.engine, *shape, args.rounds, args.override))
        else:
            print(busy(Path(folder), args.workers, args.shards_each, args.seconds_per_token))


if __name__ == "__main__":
    main()
