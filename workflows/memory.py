"""What an engine and a training worker hold, in bytes, by arithmetic on the configuration (pure).

What can only be measured, activations above all, is left out, and said so where it is printed.
"""

import math
from dataclasses import dataclass

from actors.draft_shapes import expected_shapes
from actors.units import GIB
from conf.schema import DraftConfig, EngineKind, ExtractMode, EyrieConfig, Optimizer
from workflows.verifier_facts import VerifierFacts

BF16 = 2
FP32 = 4
FROZEN = ("embed_tokens.weight", "lm_head.weight")  # speculators trains neither
INDICES = ("d2t", "t2d")


@dataclass(frozen=True)
class EngineMemory:
    """One GPU of one engine; on a CPU, the engine's host memory."""

    step: str
    weights: int
    draft_weights: int
    kv: int  # a token, like the next two
    states: int
    draft_kv: int
    room: int | None  # for the caches of tokens; None: the memory of a GPU is not known

    @property
    def per_token(self) -> int:
        return self.kv + self.states + self.draft_kv

    @property
    def tokens(self) -> int | None:
        """Tokens whose caches fit at once."""
        return None if self.room is None or not self.per_token else max(0, self.room // self.per_token)


@dataclass(frozen=True)
class TrainMemory:
    """One training worker before activations."""

    parameters: int  # trained
    weights: int
    gradients: int
    buckets: int  # DDP copies gradients into these
    optimizer: int
    frozen: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.buckets + self.optimizer + self.frozen


def engine_memory(cfg: EyrieConfig, facts: VerifierFacts) -> list[EngineMemory]:
    """The engines of the run: plain (two passes only), capturing, and with the draft. A fake engine holds nothing."""
    engine, ranks = cfg.engine, cfg.engine.tensor_parallel_size
    if engine.kind is EngineKind.fake:
        return []
    element = FP32 if engine.dtype == "float32" else BF16
    total = facts.weight_bytes if facts.element_bytes is None else facts.weight_bytes * element // facts.element_bytes
    weights = math.ceil(total / ranks)
    kv = facts.kv_layers * element * (facts.latent or 2 * math.ceil(facts.kv_heads / ranks) * facts.head_dim)
    states = (len(cfg.draft.aux_layers) + 1) * facts.verifier.hidden_size * element  # on every rank: not sharded
    draft_weights = math.ceil(served_parameters(cfg.draft, facts) * element / ranks)
    draft_kv = draft_kv_values(cfg.draft, ranks) * element

    def one(step: str, states: int, draft_weights: int, draft_kv: int) -> EngineMemory:
        return EngineMemory(step, weights, draft_weights, kv, states, draft_kv, _room(cfg, weights + draft_weights))

    plain = [] if cfg.extract.mode is ExtractMode.fused else [one("generate", 0, 0, 0)]
    return [*plain, one("extract", states, 0, 0), one("benchmark", 0, draft_weights, draft_kv)]


def _room(cfg: EyrieConfig, weights: int) -> int | None:
    if cfg.engine.kv_cache_gib is not None:
        return int(cfg.engine.kv_cache_gib * GIB)
    if cfg.cluster.gpu_gib is None:
        return None
    return int(cfg.cluster.gpu_gib * cfg.engine.gpu_memory_utilization * GIB) - weights


def draft_kv_values(draft: DraftConfig, ranks: int) -> int:
    """Values of a token's KV on one rank, all layers of the draft; the latent of MLA is on every rank."""
    if draft.mla:
        return draft.num_layers * (draft.mla.kv_lora_rank + draft.mla.qk_rope_head_dim)
    return draft.num_layers * 2 * math.ceil(draft.num_key_value_heads / ranks) * draft.head_dim


def draft_parameters(draft: DraftConfig, facts: VerifierFacts) -> dict[str, int]:
    """Name -> number of weights of every tensor of the draft, without its index tables."""
    shapes = expected_shapes(draft, facts.verifier)
    return {name: math.prod(shape) for name, shape in shapes.items() if name not in INDICES}


def served_parameters(draft: DraftConfig, facts: VerifierFacts) -> int:
    """Weights that an engine holds for the draft; the embedding is the verifier's."""
    return sum(count for name, count in draft_parameters(draft, facts).items() if name != "embed_tokens.weight")


def train_memory(cfg: EyrieConfig, facts: VerifierFacts) -> TrainMemory:
    """fp32 throughout: autocast makes bf16 copies, but weights, gradients and moments are fp32."""
    shapes = {n: s for n, s in expected_shapes(cfg.draft, facts.verifier).items() if n not in (*FROZEN, *INDICES)}
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    trained = sum(sizes.values())
    # Muon keeps one moment of a matrix, AdamW two of everything
    single = [n for n, s in shapes.items() if len(s) == 2] if cfg.train.optimizer is Optimizer.muon else []
    moments = 2 * trained - sum(sizes[name] for name in single)
    embedding, head = (draft_parameters(cfg.draft, facts)[name] for name in FROZEN)
    return TrainMemory(
        parameters=trained,
        weights=trained * FP32,
        gradients=trained * FP32,
        buckets=trained * FP32 if cfg.train.num_workers > 1 else 0,
        optimizer=moments * FP32,
        frozen=(embedding + 2 * head) * FP32,  # the verifier's rows of lm_head give the targets
    )
