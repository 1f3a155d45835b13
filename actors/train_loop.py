"""What each Ray Train worker runs: read shards, train epochs, validate, checkpoint, leave a draft."""

import json
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray.train
import torch
import torch.distributed as dist
from ray.train.torch import get_device
from speculators.losses import resolve_loss_config
from speculators.train.checkpointer import convert_float_dtype, patch_config_dtype
from speculators.train.trainer import TrainerConfig

from actors.commit import replace_atomically, whole_folder
from actors.contexts import CONTEXTS, write_contexts
from actors.draft_model import build_draft
from actors.draft_start import start_from, start_vocabulary
from actors.held_out import HeldOut, acceptance, contexts
from actors.held_out_file import HELD_OUT, LONGEST, answers_to_json
from actors.metrics import Metrics
from actors.native_verifier import folder_for_speculators
from actors.train_data import loaders, steps_of
from actors.train_job import TrainJob
from actors.train_position import PREDICTED, Position
from actors.train_progress import TrainProgress
from actors.trainer import DraftTrainer, adopt_process_group, tap_metrics
from actors.verifier import Verifier
from actors.vocabulary import Vocabulary, build_vocabulary, count_tokens, load_vocabulary, save_vocabulary

log = logging.getLogger("eyrie.train")


def train_worker(config: dict[str, Any]) -> None:
    """Entry point of a worker; `config["job"]` is a TrainJob."""
    job: TrainJob = config["job"]
    logging.basicConfig(level=logging.INFO, format="%(message)s", force=True)
    logging.getLogger("ray.train").setLevel(logging.WARNING)  # it repeats what is reported below
    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    device = get_device()
    if device.type == "cpu":
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // world))
    adopt_process_group(rank, world, device)
    vocabulary = _vocabulary(job, rank)
    trainer = _trainer(job, vocabulary, device, rank, world)
    held_out = HeldOut(job, getattr(torch, job.cfg.precision), rank, world)
    position = Position(trainer, job.cfg, Path(job.out) / "checkpoints", rank)
    position.resume()
    metrics = Metrics("train")
    steps = steps_of(trainer.train_loader, job.cfg.epochs)
    progress = TrainProgress(steps, job.cfg.log_every_s, metrics, world, Path(job.out))
    if rank == 0:
        tap_metrics(progress)
    for epoch in range(position.epoch, job.cfg.epochs):
        trainer.train_epoch(epoch, step_callback=position.after_step)
        validation = _plain(trainer.val_epoch(epoch) or {}) | _predicted(held_out, trainer.draft, job.cfg.ttt_steps)
        position.after_epoch(validation)
        if rank == 0:
            if PREDICTED in validation:
                metrics.set("predicted_acceptance_length", validation[PREDICTED])
            log.info("train: epoch %d of %d, validation %s", epoch + 1, job.cfg.epochs, _summary(position.history[-1]))
        ray.train.report({"epoch": epoch, **{f"val/{key}": value for key, value in validation.items()}})
    best = position.take_best()
    _round(trainer.draft)
    found = held_out.predict(trainer.draft, max(LONGEST, job.cfg.ttt_steps))
    if rank == 0:
        _save_draft(trainer.draft, Path(job.out) / "draft")
        write_contexts(Path(job.out) / CONTEXTS, contexts(job, torch.bfloat16))
        replace_atomically(Path(job.out) / HELD_OUT, json.dumps(answers_to_json(found)))
        result = {
            "best_epoch": best,
            "steps": trainer.global_step,
            "epochs": job.cfg.epochs,
            "vocab_coverage": vocabulary.coverage,
            "supervised_tokens": vocabulary.counted,
            "tokens_per_s": progress.rate and progress.rate * world,
            "peak_gpu_gib": torch.cuda.max_memory_allocated() / (1 << 30) if device.type == "cuda" else None,
            "history": position.history,
        }
        replace_atomically(Path(job.out) / "metrics.json", json.dumps(result, indent=1))
    ray.train.report({"epoch": job.cfg.epochs})


def _vocabulary(job: TrainJob, rank: int) -> Vocabulary:
    """Counted once, by rank 0, and kept: a resumed run must map tokens as the run before it."""
    file = Path(job.out) / "vocabulary.pt"
    if rank == 0 and not file.exists():
        counts = count_tokens(job.shards, set(job.train_samples))
        if job.init_from:
            found = start_vocabulary(Path(job.init_from), counts, job.verifier.vocab_size, job.kept)
        else:
            found = build_vocabulary(counts, job.draft.draft_vocab_size, job.verifier.vocab_size, job.kept)
        save_vocabulary(found, file)
        log.info("train: a vocabulary of %d covers %.2f%%", job.draft.draft_vocab_size, 100 * found.coverage)
    if dist.is_initialized():
        dist.barrier()
    return load_vocabulary(file)


def _verifier(job: TrainJob, rank: int) -> Verifier:
    """The verifier where speculators can open it; rank 0 writes that folder if there is none."""
    out = Path(job.out)
    if rank == 0:
        folder_for_speculators(job.verifier, out)
    if dist.is_initialized():
        dist.barrier()
    return replace(job.verifier, path=folder_for_speculators(job.verifier, out))


def _trainer(job: TrainJob, vocabulary: Vocabulary, device: torch.device, rank: int, world: int) -> DraftTrainer:
    cfg = job.cfg
    dtype = getattr(torch, cfg.precision)
    model = build_draft(
        job.draft, _verifier(job, rank), vocabulary, ttt_steps=cfg.ttt_steps, attention=cfg.attention, seed=cfg.seed
    )
    if job.init_from:  # at every start: a checkpoint, which is restored over it, holds no frozen weights
        start_from(model, Path(job.init_from))
    train_loader, val_loader = loaders(job, dtype, rank, world)
    call = {
        "ttt_steps": cfg.ttt_steps,
        "ttt_step_loss_decay": cfg.ttt_step_loss_decay,
        "loss_config": resolve_loss_config(cfg.loss, cfg.loss_implementation),
    }
    settings = TrainerConfig(
        lr=cfg.lr,
        num_epochs=cfg.epochs,
        save_path=str(Path(job.out) / "unused"),  # speculators' own checkpoints are never written
        train_call_kwargs=call,
        val_call_kwargs=call,
        optimizer=cfg.optimizer.value,
        weight_decay=cfg.weight_decay,
        muon_lr=cfg.muon_lr if cfg.muon_lr is not None else cfg.lr,
        muon_momentum=cfg.muon_momentum,
        muon_weight_decay=cfg.muon_weight_decay,
        scheduler_type=cfg.schedule.value,
        scheduler_warmup_ratio=cfg.warmup_ratio,
        scheduler_total_steps=steps_of(train_loader, cfg.epochs),
        hidden_states_dtype=dtype,
    )
    return DraftTrainer(device, model, settings, train_loader, val_loader)


def _predicted(held_out: HeldOut, model: Any, k: int) -> dict[str, Any]:
    """Of the draft as it is, for the history; nothing when no conversation is held out."""
    found = acceptance(held_out.predict(model, k), k)
    if found is None:
        return {}
    return {
        PREDICTED: found.acceptance_length,
        **{f"predicted_acceptance_{position}": rate for position, rate in enumerate(found.per_position)},
    }


@torch.no_grad()
def _round(model: torch.nn.Module) -> None:
    """Weights as the saved draft has them."""
    for parameter in model.parameters():
        parameter.copy_(parameter.bfloat16())


def _plain(metrics: dict[str, float]) -> dict[str, float]:
    return {k.removesuffix("_epoch"): v for k, v in metrics.items()}


def _summary(entry: dict[str, Any]) -> str:
    keys = [k for k in ("loss", "full_acc_0", "full_acc_1", "full_acc_2", PREDICTED) if k in entry]
    return ", ".join(f"{k} {entry[k]:.3f}" for k in keys) or "none"


def _save_draft(model: Any, final: Path) -> None:
    """A speculators checkpoint in bf16, whole or absent."""
    with whole_folder(final) as folder:
        model.save_pretrained(folder, state_dict=convert_float_dtype(model.state_dict(), torch.bfloat16))
        patch_config_dtype(folder / "config.json", torch.bfloat16)
