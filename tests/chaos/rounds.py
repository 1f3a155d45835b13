"""A round: the same work twice, undisturbed and in a storm, and what the storm changed, which must be nothing."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from actors.checkpoints import load_newest
from actors.shards import read_samples
from tests.chaos.faults import LEFTOVER
from tests.chaos.machines import Machines
from tests.chaos.run import Run
from tests.chaos.train_worker import PACE, data_order
from tests.full_disk import mount, unmount

SPARE_MIB, SAMPLE_MIB = 40, 0.1  # of the disk that a fault fills: a conversation takes 0.08
SLOW = "+engine.extra.seconds_per_token=0.04"  # a second for a conversation
PACE_S = 0.7  # of a training step
EXTRACT = [
    *("extract.samples_per_shard=2", "extract.shards_in_flight=2", "extract.workers.max=3"),
    *("generate.temperature=1", "generate.max_new_tokens=24"),
]
TRAIN = [
    *("extract.samples_per_shard=8", "extract.workers.max=2", "train.max_failures=99", "train.num_workers=2"),
    *("train.batch_tokens=256", "train.bins=2", "train.max_sample_tokens=128", "train.epochs=3"),
    *("train.checkpoint_every_steps=3", "train.keep_checkpoints=3"),
]
VLLM = [
    # in bf16 the batch decides which of two nearly equal tokens is written
    *(
        "engine=vllm_cpu",
        "engine.dtype=float32",
        "engine.kv_cache_gib=0.5",
        "engine.num_cpus=2",
        "extract.samples_per_shard=2",
    ),
    *("extract.shards_in_flight=1", "generate.temperature=0", "generate.max_new_tokens=128"),
]
BF16_NOISE = 0.05  # of a state, relative to the layer's largest


@dataclass
class Round:
    """`differences` lists what the stormy run lacks, has twice or has otherwise than the calm one."""

    kind: str
    calm: Run
    stormy: Run
    progress: Callable[[], int]  # of the stormy run
    differences: Callable[[], list[str]]
    mounted: Path | None = None

    def close(self) -> None:
        self.calm.close()
        self.stormy.close()
        if self.mounted:
            unmount(self.mounted)


def make_round(kind: str, number: int, folder: Path, verifier: Path, machines: Machines, conversations: int) -> Round:
    """Round `number` has a seed of its own; conversations: of an extraction."""
    count = {"extract": conversations, "train": 60, "vllm": 64}[kind]
    last = "train" if kind == "train" else "extract"
    work = {"extract": EXTRACT, "train": TRAIN, "vllm": VLLM}[kind]
    work = [*work, f"prompts.max_prompts={count}", f"generate.seed={number}", f"train.seed={number}"]
    calm, stormy = (
        Run(folder / f"{kind}-{number}-{name}", verifier, machines.address, count, last, *work, *more)
        for name, more in (("calm", []), ("stormy", [SLOW] if kind == "extract" else []))
    )
    mounted = None
    if kind == "extract" and mount(stormy.root, SPARE_MIB + int(SAMPLE_MIB * conversations)) is None:
        mounted = stormy.root
    (calm.root / PACE).write_text("0")
    (stormy.root / PACE).write_text(str(PACE_S))
    compare = {"extract": same_shards, "train": same_training, "vllm": same_states}[kind]
    progress = stormy.trained if kind == "train" else stormy.committed
    return Round(kind, calm, stormy, progress, lambda: list(compare(calm.root, stormy.root)), mounted)


def same_shards(calm: Path, stormy: Path) -> Iterable[str]:
    """Every committed shard, byte for byte; and nothing that was being written."""
    wanted, found = (
        {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in shards(root)} for root in (calm, stormy)
    )
    assert wanted
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            yield f"{name}: {found.get(name, 'missing')[:12]}, undisturbed {wanted.get(name, 'missing')[:12]}"
    for left in stormy.glob("extract/*/.tmp-*"):
        if not left.name.startswith(LEFTOVER):  # which goes at the next start
            yield f"{left.name}: left behind"


def same_training(calm: Path, stormy: Path) -> Iterable[str]:
    """The samples of every step, and the weights at the end."""
    wanted, found = data_order(calm), data_order(stormy)
    for step in sorted(wanted.keys() | found.keys()):
        if wanted.get(step) != found.get(step):
            yield f"epoch and step {step}: trained on {found.get(step)}, undisturbed {wanted.get(step)}"
    ours, theirs = (load_newest(next(root.glob("train/*/checkpoints"))) for root in (stormy, calm))
    assert ours and theirs
    if ours["global_step"] != theirs["global_step"]:
        yield f"{ours['global_step']} steps, undisturbed {theirs['global_step']}"
    for name, weight in theirs["trainable"].items():
        if not torch.allclose(ours["trainable"][name], weight, rtol=1e-3, atol=1e-4):
            yield f"{name}: differs by up to {(ours['trainable'][name] - weight).abs().max():.2g}"


def same_states(calm: Path, stormy: Path) -> Iterable[str]:
    """A real engine: the same ids, and states within what another batch changes."""
    wanted, found = ({file.name: read_samples(file) for file in shards(root)} for root in (calm, stormy))
    assert wanted
    for name in sorted(wanted.keys() | found.keys()):
        pairs = list(zip(wanted.get(name, []), found.get(name, []), strict=False))
        if not pairs or len(wanted[name]) != len(found[name]):
            yield f"{name}: {len(found.get(name, []))} samples, undisturbed {len(wanted.get(name, []))}"
        for a, b in pairs:
            if a.sample != b.sample or a.token_ids.tolist() != b.token_ids.tolist():
                yield f"{name}, sample {a.sample}: other ids"
            elif (apart := noise(a.hidden_states, b.hidden_states)) > BF16_NOISE:
                yield f"{name}, sample {a.sample}: states differ by {apart:.3f}"


def noise(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference of two [T, L, H] arrays of bf16 bits, relative to the largest value of its layer."""
    one, other = (torch.from_numpy(x.copy()).view(torch.bfloat16).float() for x in (a, b))
    return float(((one - other).abs().amax((0, 2)) / one.abs().amax((0, 2))).max())


def shards(root: Path) -> list[Path]:
    return sorted(root.glob("extract/*/part-*.parquet"))
