"""Steps `generate` and `extract`: on-policy answers and hidden states, in fixed shards over elastic workers."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from actors.capture import Job
from actors.commit import replace_atomically, sweep
from actors.engine import EngineSpec, Sampling
from actors.responses import response_name, response_row
from actors.shard_gate import read_gates
from actors.shard_store import below, committed_in, is_uri, probe
from actors.shards import ManifestRow, ShardMeta, committed, manifest_name, plan_shards
from actors.units import GIB
from actors.verifier import Verifier
from conf.schema import DraftConfig, EngineConfig, ExtractConfig, GenerateConfig
from workflows import gate_report
from workflows.disk_room import check_room
from workflows.progress import Progress

log = logging.getLogger(__name__)
Pool = Callable[[EngineSpec, Job, list[int], ExtractConfig, str], Iterator[ManifestRow]]
LOST = ("dead_letter", "not_finite", "token_mismatch")  # reasons to drop a sample that are no property of the sample


def generate(
    cfg: GenerateConfig,
    extract_cfg: ExtractConfig,
    engine: EngineConfig,
    verifier: Verifier,
    trust_remote_code: bool,
    prompts_out: Path,
    pool: Pool,
    out: Path,
) -> dict[str, Any]:
    """Answer every prompt with a plain engine; leaves out/responses-*.parquet."""
    job = _job(cfg, extract_cfg, engine, prompts_out, out)
    sweep(out)
    names = {shard: out / response_name(shard, job.num_shards) for shard in range(job.num_shards)}
    done = {shard: response_row(file, shard) for shard, file in names.items() if file.exists()}
    spec = EngineSpec(verifier.path, engine, trust_remote_code)
    rows = _complete(spec, job, done, extract_cfg, "generate", pool)
    return _account(rows, extract_cfg.max_lost_fraction)


def extract(
    generate_cfg: GenerateConfig,
    cfg: ExtractConfig,
    draft: DraftConfig,
    engine: EngineConfig,
    verifier: Verifier,
    trust_remote_code: bool,
    prompts_out: Path,
    responses: Path | None,
    pool: Pool,
    out: Path,
) -> dict[str, Any]:
    """Leave out/part-*.parquet with the states of the aux layers and of the last layer; or those in `extract.store`,
    and their manifest rows in out/part-*.json.

    `responses` is the output of `generate` (two passes), or None to answer and capture at once (fused).
    """
    layers = (*draft.aux_layers, verifier.last_layer)
    meta = ShardMeta(
        verifier=verifier.fingerprint,
        layers=layers,
        hidden_size=verifier.hidden_size,
        engine=f"{engine.kind.value} {engine.dtype}",
        config_hash=out.name,  # the step's fingerprint names its directory
    )
    job = _job(generate_cfg, cfg, engine, prompts_out, out, meta=meta, responses=responses)
    sweep(out)
    done = committed(out, job.num_shards, meta.config_hash)
    if job.store:
        probe(job.store)
        done |= committed_in(job.store, job.num_shards, meta.config_hash)
    else:
        check_room(job, done)
    spec = EngineSpec(verifier.path, engine, trust_remote_code, capture_layers=layers)
    rows = _complete(spec, job, done, cfg, "extract", pool)
    if job.store:
        _settle(job, rows)
    return {
        **_account(rows, cfg.max_lost_fraction),
        "bytes": sum(r.bytes for r in rows),
        "layers": list(layers),
        "gate": gate_report.summary(read_gates(out, job.num_shards), layers, job.num_shards),
    }


def _settle(job: Job, rows: list[ManifestRow]) -> None:
    """Have these rows count from here on, whatever becomes of `extract.store`, if the store still holds them all."""
    assert job.store and job.meta
    held = committed_in(job.store, job.num_shards, job.meta.config_hash)  # sweeps what lost a race, too
    stored = [row for row in rows if is_uri(row.file)]
    if lost := [row.shard for row in stored if row.shard not in held or held[row.shard].sha256 != row.sha256]:
        raise RuntimeError(
            f"extract.store: shards {lost} are not as this run committed them. The same command makes what is missing; "
            "no two runs may share a store's folder."
        )
    for row in stored:
        replace_atomically(Path(job.out) / manifest_name(row.shard, job.num_shards), held[row.shard].dumps())


def _job(
    cfg: GenerateConfig,
    extract_cfg: ExtractConfig,
    engine: EngineConfig,
    prompts_out: Path,
    out: Path,
    *,
    meta: ShardMeta | None = None,
    responses: Path | None = None,
) -> Job:
    prompts = prompts_out / "prompts.parquet"
    plan = plan_shards(pq.read_metadata(prompts).num_rows, extract_cfg.samples_per_shard)
    gate = extract_cfg.gate
    return Job(
        prompts=str(prompts),
        out=str(out),
        ranges=tuple((r.start, r.stop) for r in plan),
        sampling=Sampling(cfg.max_new_tokens, cfg.temperature, cfg.top_p, cfg.seed),
        keep_truncated=cfg.keep_truncated,
        max_model_len=engine.max_model_len,
        meta=meta,
        responses=str(responses) if responses else None,
        store=below(extract_cfg.store, out.name) if extract_cfg.store and meta else None,
        gate_samples=gate.samples if meta else 0,
        gate_hf=gate.hf,
        shown=gate_report.shown_samples(prompts, gate.shown) if meta else (),
        disk_budget=None if extract_cfg.disk_budget_gib is None else int(extract_cfg.disk_budget_gib * GIB),
    )


def _complete(
    spec: EngineSpec, job: Job, done: dict[int, ManifestRow], cfg: ExtractConfig, name: str, pool: Pool
) -> list[ManifestRow]:
    """Rows of all shards: those committed before, and those that the pool commits now."""
    todo = [shard for shard in range(job.num_shards) if shard not in done]
    if done:
        log.info("%s: %d of %d shards were committed before", name, len(done), job.num_shards)
    if todo:
        with Progress(name, job.num_shards, "shards") as progress:
            for row in pool(spec, job, todo, cfg, name):
                done[row.shard] = row
                progress(len(done))
    missing = [shard for shard in range(job.num_shards) if shard not in done]
    if missing:
        raise RuntimeError(f"{name}: {len(missing)} of {job.num_shards} shards are missing, first {missing[0]}")
    return [done[shard] for shard in range(job.num_shards)]


def _account(rows: list[ManifestRow], max_lost_fraction: float) -> dict[str, Any]:
    """Totals over the shards; in = kept + dropped holds for each, and for all. RuntimeError when too much was lost."""
    dropped: Counter[str] = Counter()
    for row in rows:
        dropped.update(row.dropped)
    samples, samples_in = sum(r.samples for r in rows), sum(r.samples_in for r in rows)
    assert samples_in == samples + sum(dropped.values())
    if samples == 0:
        raise RuntimeError(f"every conversation was dropped: {dict(dropped)}. See generate.* and engine.max_model_len")
    lost = {reason: dropped[reason] for reason in LOST if dropped[reason]}
    if sum(lost.values()) > max_lost_fraction * samples_in:
        raise RuntimeError(
            f"extract.max_lost_fraction: {lost} of {samples_in} conversations were lost, more than "
            f"{max_lost_fraction}. dead-letters/ beside the shards names those that took the engine down. Mend or "
            "remove them, or allow more: the shards stay, and the same command with a larger value takes seconds."
        )
    supervised = sum(r.supervised for r in rows)
    return {
        "samples_in": samples_in,
        "samples": samples,
        "rows": sum(r.rows for r in rows),
        "supervised": supervised,
        "output_tokens": supervised,
        "shards": len(rows),
        "dropped": dict(dropped),
    }
