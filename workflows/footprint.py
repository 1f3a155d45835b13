"""What a run needs of GPUs, disk and hours, by arithmetic on its configuration (pure)."""

import math
from dataclasses import dataclass

from actors.disk import ROW_BYTES
from conf.schema import ExtractMode, EyrieConfig
from workflows.memory import BF16, draft_parameters, train_memory
from workflows.verifier_facts import VerifierFacts


@dataclass(frozen=True)
class StepNeeds:
    """What a step asks Ray for: `workers` at once, each with this much."""

    step: str
    workers: int
    gpus: int
    cpus: float


@dataclass(frozen=True)
class Data:
    """Conversations with states, and what they take on disk."""

    conversations: int | None  # None: nothing limits them
    tokens_each: int
    token: int  # bytes of one row
    samples_per_shard: int
    training: int  # checkpoints and drafts

    @property
    def tokens(self) -> int | None:
        return None if self.conversations is None else self.conversations * self.tokens_each

    @property
    def shards(self) -> int | None:
        return None if self.conversations is None else math.ceil(self.conversations / self.samples_per_shard)

    @property
    def shard(self) -> int:
        return self.samples_per_shard * self.tokens_each * self.token

    @property
    def states(self) -> int | None:
        return None if self.tokens is None else self.tokens * self.token


def step_needs(cfg: EyrieConfig) -> list[StepNeeds]:
    """Every step that holds an engine or trains."""
    engine, train = cfg.engine, cfg.train
    names = ["extract"] if cfg.extract.mode is ExtractMode.fused else ["generate", "extract"]
    pools = [StepNeeds(name, cfg.extract.workers.max, engine.num_gpus, engine.num_cpus) for name in names]
    training = StepNeeds("train", train.num_workers, int(train.use_gpu), train.num_cpus_per_worker)
    single = [StepNeeds(name, 1, engine.num_gpus, engine.num_cpus) for name in ("convert", "benchmark")]
    return [*pools, training, *single]


def data(cfg: EyrieConfig, facts: VerifierFacts) -> Data:
    """Conversations at the lengths that `plan` gives, or at their limits."""
    limits = [source.limit for source in cfg.prompts.sources.values()]
    known = [limit for limit in limits if limit is not None]
    sizes = [n for n in (cfg.prompts.max_prompts, sum(known) if len(known) == len(limits) else None) if n is not None]
    answer = cfg.plan.response_tokens or cfg.generate.max_new_tokens * cfg.prompts.max_turns
    memory = train_memory(cfg, facts)
    kept = (cfg.train.keep_checkpoints + 1) * (memory.weights + memory.optimizer)  # one more while it is written
    drafts = 3 * BF16 * sum(draft_parameters(cfg.draft, facts).values())  # trained, and in two formats
    return Data(
        conversations=min(sizes, default=None),
        tokens_each=min(cfg.plan.prompt_tokens, cfg.prompts.max_prompt_tokens) + answer,
        token=(len(cfg.draft.aux_layers) + 1) * facts.verifier.hidden_size * BF16 + ROW_BYTES,
        samples_per_shard=cfg.extract.samples_per_shard,
        training=kept + drafts,
    )


def extract_hours(cfg: EyrieConfig, tokens: int | None) -> float | None:
    rate = cfg.plan.extract_tokens_per_s
    return None if rate is None or tokens is None else tokens / (rate * cfg.extract.workers.max) / 3600


def train_hours(cfg: EyrieConfig, found: Data) -> float | None:
    """All epochs over the training conversations, each cut at train.max_sample_tokens; validation is not counted."""
    rate = cfg.plan.train_tokens_per_s
    if rate is None or found.conversations is None:
        return None
    each = min(found.tokens_each, cfg.train.max_sample_tokens)
    tokens = found.conversations * (1 - cfg.prompts.val_fraction) * each * cfg.train.epochs
    return tokens / (rate * cfg.train.num_workers) / 3600
