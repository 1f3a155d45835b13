"""The tables of a plan (pure): memory in GiB, what a token takes in bytes."""

from actors.units import GIB
from conf.schema import EyrieConfig
from workflows.footprint import Data, data, extract_hours, step_needs, train_hours
from workflows.memory import engine_memory, train_memory
from workflows.tables import plain
from workflows.verifier_facts import VerifierFacts


def gpu_table(cfg: EyrieConfig) -> str:
    """What each step asks Ray for."""
    needs = step_needs(cfg)
    rows = [[n.step, _n(n.workers), _n(n.gpus), _n(n.workers * n.gpus), f"{n.workers * n.cpus:g}"] for n in needs]
    largest = max(n.workers * n.gpus for n in needs)
    have = f"so {largest} GPUs are enough" if cfg.plan.gpus is None else f"and plan.gpus is {cfg.plan.gpus}"
    return plain(["step", "workers", "GPUs each", "GPUs", "CPUs"], rows) + f"\nsteps run one after the other, {have}"


def engine_table(cfg: EyrieConfig, facts: VerifierFacts) -> str:
    """One GPU of each kind of engine."""
    engines, engine, gpu = engine_memory(cfg, facts), cfg.engine, cfg.cluster.gpu_gib
    if not engines:
        return "engine.kind is fake: no memory to plan"
    if engine.kv_cache_gib is not None:
        room = "GiB for caches (engine.kv_cache_gib)"
    elif gpu is None:
        room = "GiB for caches: give cluster.gpu_gib"
    else:
        room = f"GiB left for caches, of {gpu:g} x {engine.gpu_memory_utilization:g}"
    length = engine.max_model_len
    lines = {
        f"GiB of weights (tensor_parallel_size {engine.tensor_parallel_size})": [_gib(e.weights) for e in engines],
        "GiB of draft weights": [_gib(e.draft_weights or None) for e in engines],
        room: [_gib(e.room) for e in engines],
        "bytes a token: KV of the verifier": [_n(e.kv) for e in engines],
        "bytes a token: captured states": [_n(e.states or None) for e in engines],
        "bytes a token: KV of the draft": [_n(e.draft_kv or None) for e in engines],
        "tokens that fit": [_n(e.tokens) for e in engines],
        f"sequences of {length:,} (engine.max_model_len)": [
            "-" if e.tokens is None else f"{e.tokens / length:,.1f}" for e in engines
        ],
    }
    title = "one GPU of an engine" if engine.num_gpus else "an engine, host memory"
    notes = "activations, buffers and CUDA graphs come off what is left: vLLM measures them when it starts"
    return plain([title, *(e.step for e in engines)], [[name, *cells] for name, cells in lines.items()]) + f"\n{notes}"


def train_table(cfg: EyrieConfig, facts: VerifierFacts) -> str:
    """One training worker."""
    memory, train = train_memory(cfg, facts), cfg.train
    lines = {
        f"weights, fp32 ({memory.parameters / 1e6:,.1f} M trained)": memory.weights,
        "gradients": memory.gradients,
        "buckets of the gradient exchange": memory.buckets or None,
        f"optimizer ({train.optimizer.value})": memory.optimizer,
        "frozen: embedding, lm_head twice": memory.frozen,
        "together, before activations": memory.total,
    }
    tokens = train.batch_tokens // train.num_workers
    note = f"activations of {tokens:,} tokens (train.batch_tokens / train.num_workers) come on top"
    if train.use_gpu:
        note += (
            "\nmeasured in all, one H200, Kimi reference draft, AdamW, 3 TTT steps: 36 GB at 4,096 tokens, 43 at 8,192"
        )
    title = "a training worker, on its GPU" if train.use_gpu else "a training worker, host memory"
    return plain([title, "GiB"], [[name, _gib(size)] for name, size in lines.items()]) + f"\n{note}"


def data_table(cfg: EyrieConfig, facts: VerifierFacts, disk: str) -> str:
    """Shards of hidden states; `disk` says where the size of the disk comes from."""
    found, plan = data(cfg, facts), cfg.plan
    asked = "prompts.max_prompts" if found.conversations is not None else "give prompts.max_prompts"
    answer = "plan.response_tokens" if plan.response_tokens else "generate.max_new_tokens, at most"
    rows = [
        [f"conversations ({asked})", _n(found.conversations)],
        [f"tokens each (plan.prompt_tokens + {answer})", _n(found.tokens_each)],
        ["tokens", _n(found.tokens)],
        ["bytes a token", _n(found.token)],
        ["shards", _n(found.shards)],
        ["GiB of one shard", _gib(found.shard)],
        ["GiB of all shards", _gib(found.states)],
        ["GiB of checkpoints and drafts", _gib(found.training)],
        [f"GiB of disk ({disk})", "-" if plan.disk_gib is None else f"{plan.disk_gib:,.2f}"],
        [
            f"GiB of host memory, {cfg.extract.shards_in_flight} shards in flight in a worker",
            _gib(cfg.extract.shards_in_flight * found.shard),
        ],
    ]
    return plain(["hidden states", ""], rows)


def hours_table(cfg: EyrieConfig, found: Data) -> str:
    """Hours at the given rates."""

    def row(step: str, key: str, rate: float | None, of: str, hours: float | None) -> list[str]:
        given = f"{step}: give {key}" if rate is None else f"{step}, {of} at {rate:,g} tokens/s each (given: {key})"
        return [given, "-" if hours is None else f"{hours:,.1f}"]

    plan = cfg.plan
    engines, workers = f"workers {cfg.extract.workers.max}", f"workers {cfg.train.num_workers}"
    extracting, training = extract_hours(cfg, found.tokens), train_hours(cfg, found)
    rows = [
        row("extract", "plan.extract_tokens_per_s", plan.extract_tokens_per_s, engines, extracting),
        row("train", "plan.train_tokens_per_s", plan.train_tokens_per_s, workers, training),
    ]
    return plain(["step", "hours"], rows)


def _gib(size: int | None) -> str:
    return "-" if size is None else f"{size / GIB:,.2f}"


def _n(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"
