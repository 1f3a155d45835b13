"""Ranges and cross checks of a configuration: everything that can be refused before a process starts (pure).

Each check yields a message that names the key, shows the value and ends in what to do.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from actors.node_labels import is_condition
from actors.verifier import Verifier
from conf.schema import (
    DraftConfig,
    EngineConfig,
    EngineKind,
    EyrieConfig,
    MlaConfig,
    PromptsConfig,
    SourceConfig,
    TrainConfig,
)
from workflows.verifier_checks import kept_problems, rank_problems, tokenizer_problems

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # becomes a file name
DTYPES = ("auto", "bfloat16", "float16", "float32")
SPARE = 2  # tokens; with fewer, vLLM drops the states of a step that touches max_model_len


def problems(cfg: EyrieConfig, verifier: Verifier | None) -> Iterator[str]:
    """Every problem of `cfg`; without a verifier, those that need none."""
    if not NAME.fullmatch(cfg.name):
        yield f"name: {cfg.name!r} names a folder; use letters, digits, '.', '_' and '-'"
    yield from _ranges(cfg)
    yield from _draft(cfg.draft)
    yield from _prompts(cfg.prompts)
    yield from _engine(cfg.engine)
    yield from _train(cfg.train)
    yield from _lengths(cfg)
    yield from _sampling(cfg)
    if verifier:
        yield from _against_verifier(cfg, verifier)


def _ranges(cfg: EyrieConfig) -> Iterator[str]:
    at_least_1 = {
        "draft.num_layers": cfg.draft.num_layers,
        "draft.intermediate_size": cfg.draft.intermediate_size,
        "draft.num_attention_heads": cfg.draft.num_attention_heads,
        "draft.num_key_value_heads": cfg.draft.num_key_value_heads,
        "draft.draft_vocab_size": cfg.draft.draft_vocab_size,
        "draft.max_position_embeddings": cfg.draft.max_position_embeddings,
        "prompts.max_turns": cfg.prompts.max_turns,
        "prompts.max_prompt_tokens": cfg.prompts.max_prompt_tokens,
        "engine.max_num_seqs": cfg.engine.max_num_seqs,
        "engine.tensor_parallel_size": cfg.engine.tensor_parallel_size,
        "engine.start_timeout_s": cfg.engine.start_timeout_s,
        "generate.max_new_tokens": cfg.generate.max_new_tokens,
        "extract.samples_per_shard": cfg.extract.samples_per_shard,
        "extract.workers.min": cfg.extract.workers.min,
        "extract.shards_in_flight": cfg.extract.shards_in_flight,
        "train.epochs": cfg.train.epochs,
        "train.batch_tokens": cfg.train.batch_tokens,
        "train.bins": cfg.train.bins,
        "train.max_sample_tokens": cfg.train.max_sample_tokens,
        "train.ttt_steps": cfg.train.ttt_steps,
        "train.num_workers": cfg.train.num_workers,
        "train.checkpoint_every_steps": cfg.train.checkpoint_every_steps,
        "train.keep_checkpoints": cfg.train.keep_checkpoints,
        "benchmark.num_speculative_tokens": cfg.benchmark.num_speculative_tokens,
        "benchmark.max_new_tokens": cfg.benchmark.max_new_tokens,
        "benchmark.prompts_per_set": cfg.benchmark.prompts_per_set,
        "benchmark.concurrency": cfg.benchmark.concurrency,
        "benchmark.speed_prompts": cfg.benchmark.speed_prompts,
        "benchmark.speed_new_tokens": cfg.benchmark.speed_new_tokens,
    }
    optional = {"prompts.max_prompts": cfg.prompts.max_prompts, "cluster.num_cpus": cfg.cluster.num_cpus}
    at_least_1 |= {key: value for key, value in optional.items() if value is not None}
    at_least_0 = {
        "prompts.decontaminate_ngram": cfg.prompts.decontaminate_ngram,
        "engine.num_gpus": cfg.engine.num_gpus,
        "engine.num_cpus": cfg.engine.num_cpus,
        "generate.temperature": cfg.generate.temperature,
        "train.weight_decay": cfg.train.weight_decay,
        "train.muon_weight_decay": cfg.train.muon_weight_decay,
        "train.max_failures": cfg.train.max_failures,
        "convert.gate_prompts": cfg.convert.gate_prompts,
        "benchmark.held_out_prompts": cfg.benchmark.held_out_prompts,
        "extract.gate.samples": cfg.extract.gate.samples,
        "extract.gate.shown": cfg.extract.gate.shown,
        "cluster.wait_s": cfg.cluster.wait_s,
        "cluster.stop_grace_s": cfg.cluster.stop_grace_s,
    }
    above_0 = {
        "draft.rms_norm_eps": cfg.draft.rms_norm_eps,
        "train.lr": cfg.train.lr,
        "train.ttt_step_loss_decay": cfg.train.ttt_step_loss_decay,
        "train.num_cpus_per_worker": cfg.train.num_cpus_per_worker,
        "train.log_every_s": cfg.train.log_every_s,
    }
    nullable = {
        "draft.rope_theta": cfg.draft.rope_theta,
        "train.muon_lr": cfg.train.muon_lr,
        "engine.kv_cache_gib": cfg.engine.kv_cache_gib,
        "extract.disk_budget_gib": cfg.extract.disk_budget_gib,
        "train.shard_cache_gib": cfg.train.shard_cache_gib,
    }
    above_0 |= {key: value for key, value in nullable.items() if value is not None}
    yield from (f"{key}: {value} is too small; give 1 or more" for key, value in at_least_1.items() if not value >= 1)
    yield from (f"{key}: {value} is negative; give 0 or more" for key, value in at_least_0.items() if not value >= 0)
    yield from (f"{key}: {value} must be greater than 0" for key, value in above_0.items() if not value > 0)
    if not 0 <= cfg.prompts.val_fraction < 1:
        yield f"prompts.val_fraction: {cfg.prompts.val_fraction} is no fraction; give 0 up to, not including, 1"
    if not 0 <= cfg.extract.max_lost_fraction < 1:
        lost = cfg.extract.max_lost_fraction
        yield f"extract.max_lost_fraction: {lost} is no fraction; give 0 up to, not including, 1"
    if not 0 < cfg.generate.top_p <= 1:
        yield f"generate.top_p: {cfg.generate.top_p} is out of range; give more than 0, at most 1"
    if not 0 < cfg.engine.gpu_memory_utilization <= 1:
        yield f"engine.gpu_memory_utilization: {cfg.engine.gpu_memory_utilization} must be in (0, 1]; try 0.9"
    if cfg.extract.store and cfg.extract.disk_budget_gib is not None:
        yield "extract.disk_budget_gib: the shards lie in extract.store, which has no such budget; give null"
    for work, labels in vars(cfg.cluster.labels).items():
        for label, condition in labels.items():
            if not is_condition(condition):
                yield (
                    f"cluster.labels.{work}: {label}={condition!r} is no label selector of Ray's; give a value, "
                    "'!value', 'in(a, b)' or '!in(a, b)'"
                )
    if cfg.extract.workers.max < cfg.extract.workers.min:
        yield (
            f"extract.workers.max: {cfg.extract.workers.max} is less than extract.workers.min "
            f"{cfg.extract.workers.min}; raise max or lower min"
        )


def _draft(draft: DraftConfig) -> Iterator[str]:
    layers = draft.aux_layers
    if not layers:
        yield "draft.aux_layers: empty; give ids of verifier layers, e.g. [2,15,27] of 30 layers"
    elif layers != sorted(set(layers)):
        yield f"draft.aux_layers: {layers} is not ascending without repeats; give {sorted({*layers} - {0})}"
    if 0 in layers:
        yield (
            "draft.aux_layers: id 0, the embedding itself, is not captured for now: vLLM's DeepSeek models have no "
            "state there. Use ids from 1"
        )
    elif layers and min(layers) < 0:
        yield f"draft.aux_layers: {min(layers)} is negative; ids count layers from the input, from 1"
    if draft.head_dim < 2 or draft.head_dim % 2:
        yield f"draft.head_dim: {draft.head_dim} must be even and positive for rotary embeddings; 64 or 128 are usual"
    if draft.num_key_value_heads >= 1 and draft.num_attention_heads % draft.num_key_value_heads:
        yield (
            f"draft.num_attention_heads: {draft.num_attention_heads} is no multiple of draft.num_key_value_heads "
            f"{draft.num_key_value_heads}; change one of them"
        )
    if draft.mla:
        yield from _mla(draft, draft.mla)
    if draft.norm_before_fc and draft.fc_norm:
        yield "draft.norm_before_fc and draft.fc_norm exclude each other; set one of them to false"


def _mla(draft: DraftConfig, mla: MlaConfig) -> Iterator[str]:
    """What vLLM's only MLA draft, Eagle3DeepseekV2ForCausalLM, can run."""
    yield from (f"draft.mla.{key}: {n} is too small; give 1 or more" for key, n in vars(mla).items() if n < 1)
    if draft.head_dim != (head_dim := mla.qk_nope_head_dim + mla.qk_rope_head_dim):
        yield f"draft.head_dim: {draft.head_dim}, but with draft.mla it is qk_nope + qk_rope = {head_dim}; give that"
    if draft.num_key_value_heads != draft.num_attention_heads:
        yield (
            f"draft.num_key_value_heads: {draft.num_key_value_heads}, but MLA expands its latent for each of the "
            f"draft.num_attention_heads {draft.num_attention_heads}; give the same number"
        )
    if draft.norm_before_fc:
        yield "draft.norm_before_fc: true, which vLLM's MLA draft does not have; set it to false (draft.fc_norm=true)"
    if draft.num_layers != 1:
        yield f"draft.num_layers: {draft.num_layers}, but a draft with draft.mla has one layer; give 1"
    if draft.attention_bias:
        yield "draft.attention_bias: true, which vLLM's MLA draft does not have; set it to false"


def _prompts(prompts: PromptsConfig) -> Iterator[str]:
    groups = {"sources": prompts.sources, "evals": prompts.evals}
    for group, sets in groups.items():
        if not sets:
            example = f"'++prompts.{group}={{mine: {{kind: file, path: mine.jsonl}}}}'"
            yield f"prompts.{group}: empty; choose prompts=bundled, or give your own: {example}"
        for name, source in sets.items():
            yield from _source(f"prompts.{group}.{name}", name, source)
    for name in sorted(prompts.sources.keys() & prompts.evals.keys()):
        yield f"prompts.evals.{name}: prompts.sources.{name} has that name; rename one of them"
    for name, evaluated in prompts.evals.items():
        for other, trained in prompts.sources.items():
            if (evaluated.kind, evaluated.path, evaluated.split) == (trained.kind, trained.path, trained.split):
                yield (
                    f"prompts.evals.{name}: {evaluated.path} is trained on as prompts.sources.{other}, so its "
                    "acceptance would mean nothing; remove one of them"
                )


def _source(key: str, name: str, source: SourceConfig) -> Iterator[str]:
    if not NAME.fullmatch(name):
        yield f"{key}: the name becomes a file name; use letters, digits, '.', '_' and '-'"
    if not source.path:
        yield f"{key}.path: empty; give a bundled name, a file or a hub id"
    if source.limit is not None and source.limit < 1:
        yield f"{key}.limit: {source.limit} is too small; give 1 or more, or null for all"


def _engine(engine: EngineConfig) -> Iterator[str]:
    if engine.dtype not in DTYPES:
        yield f"engine.dtype: {engine.dtype!r} is unknown; give one of {', '.join(DTYPES)}"
    if not Path(engine.transfer_dir).is_absolute():
        yield f"engine.transfer_dir: {engine.transfer_dir} is relative; give an absolute path in memory, e.g. /dev/shm"
    if engine.max_num_batched_tokens < engine.max_num_seqs:
        yield (
            f"engine.max_num_batched_tokens: {engine.max_num_batched_tokens} is less than engine.max_num_seqs "
            f"{engine.max_num_seqs}; raise it"
        )
    if engine.kind is not EngineKind.vllm:
        return
    if engine.num_gpus > 0 and engine.num_gpus != engine.tensor_parallel_size:
        yield (
            f"engine.num_gpus: {engine.num_gpus} GPUs for engine.tensor_parallel_size {engine.tensor_parallel_size}; "
            "an engine uses one GPU for each rank, so give both the same number (num_gpus 0 is an engine on CPU)"
        )
    if engine.num_gpus == 0 and engine.kv_cache_gib is None:
        yield "engine.kv_cache_gib: no value; on CPU vLLM cannot tell how much memory to take. Give GiB, e.g. 2"


def _sampling(cfg: EyrieConfig) -> Iterator[str]:
    engine = cfg.engine
    cut = engine.max_num_batched_tokens < engine.max_model_len
    if cfg.generate.temperature > 0 and engine.kind is EngineKind.vllm and engine.num_gpus == 0 and cut:
        yield (
            f"engine.max_num_batched_tokens: {engine.max_num_batched_tokens} is less than engine.max_model_len "
            f"{engine.max_model_len}, so prompts are cut in parts, and vLLM's CPU engine dies of that when "
            f"generate.temperature is above 0 (it is {cfg.generate.temperature}); raise it to {engine.max_model_len}"
        )


def _train(train: TrainConfig) -> Iterator[str]:
    if not 0 <= train.warmup_ratio <= 1:
        yield f"train.warmup_ratio: {train.warmup_ratio} is no fraction; give 0 to 1"
    if not 0 <= train.muon_momentum < 1:
        yield f"train.muon_momentum: {train.muon_momentum} is out of range; give 0 up to, not including, 1"
    yield from _bins(train)
    if not train.use_gpu and train.loss_implementation == "fused":
        yield "train.loss_implementation: fused is a GPU kernel and train.use_gpu is false; use eager, or train=cpu"


def _bins(train: TrainConfig) -> Iterator[str]:
    """A step is packed into bins, which the workers share."""
    if train.num_workers < 1 or train.bins < 1:
        return
    if train.bins % train.num_workers:
        divisors = [n for n in range(1, train.bins + 1) if train.bins % n == 0]
        yield (
            f"train.num_workers: {train.num_workers} does not divide train.bins {train.bins}, which a step is packed "
            f"into whatever the workers; give one of {divisors}, or train.bins={train.num_workers}, which trains anew"
        )
    if train.batch_tokens % train.bins:
        yield f"train.batch_tokens: {train.batch_tokens} cannot be cut into train.bins {train.bins}; give a multiple"
    elif train.batch_tokens // train.bins < train.max_sample_tokens:
        yield (
            f"train.batch_tokens: {train.batch_tokens} over train.bins {train.bins} is less than one conversation of "
            f"train.max_sample_tokens {train.max_sample_tokens}; raise it, or use fewer bins"
        )


def _lengths(cfg: EyrieConfig) -> Iterator[str]:
    """Sequences that a step asks for must fit into the engine."""
    prompt, have = cfg.prompts.max_prompt_tokens, cfg.engine.max_model_len
    generated = cfg.generate.max_new_tokens * cfg.prompts.max_turns
    if have < (need := prompt + generated + SPARE):
        yield (
            f"engine.max_model_len: {have} tokens, but prompts.max_prompt_tokens {prompt} + generate.max_new_tokens x "
            f"prompts.max_turns {generated} + {SPARE} are {need}; raise it or lower those"
        )
    measured = max(cfg.benchmark.max_new_tokens, cfg.benchmark.speed_new_tokens) + cfg.benchmark.num_speculative_tokens
    if have < (need := prompt + measured + SPARE):
        yield (
            f"engine.max_model_len: {have} tokens, but the benchmark needs prompts.max_prompt_tokens {prompt} + "
            f"response and draft tokens {measured} + {SPARE} = {need}; raise it or lower benchmark.max_new_tokens"
        )


def _against_verifier(cfg: EyrieConfig, verifier: Verifier) -> Iterator[str]:
    if beyond := [layer for layer in cfg.draft.aux_layers if layer > verifier.num_layers]:
        yield (
            f"draft.aux_layers: {beyond} beyond the verifier's {verifier.num_layers} layers; give ids from 1 to "
            f"{verifier.num_layers}"
        )
    if cfg.draft.draft_vocab_size > verifier.vocab_size:
        yield (
            f"draft.draft_vocab_size: {cfg.draft.draft_vocab_size} is more than the verifier's vocabulary of "
            f"{verifier.vocab_size}; lower it"
        )
    if cfg.engine.max_model_len > verifier.max_position_embeddings:
        yield (
            f"engine.max_model_len: {cfg.engine.max_model_len} is more than the verifier's "
            f"{verifier.max_position_embeddings} positions; lower it"
        )
    yield from tokenizer_problems(cfg, verifier)
    yield from rank_problems(cfg, verifier)
    yield from kept_problems(cfg, verifier)
