"""The arguments of vLLM's engine for a spec (pure: vLLM is not imported)."""

from pathlib import Path
from typing import Any

from actors.checkpoint_folder import read_config
from actors.engine import EngineSpec


def engine_args(spec: EngineSpec, transfer: Path) -> dict[str, Any]:
    """AsyncEngineArgs of a spec; `config.extra` wins over everything."""
    config = spec.config
    args: dict[str, Any] = {
        "model": spec.verifier,
        "dtype": config.dtype,
        "max_model_len": config.max_model_len,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "tensor_parallel_size": config.tensor_parallel_size,
        # one GPU needs no worker process of its own; for more, vLLM in a placement group would choose "ray" by itself
        "distributed_executor_backend": "uni" if config.num_gpus == 1 else "mp",
        "enforce_eager": config.enforce_eager,
        "trust_remote_code": spec.trust_remote_code,
        "enable_prefix_caching": False,  # captured lengths were wrong with it (vllm#44485, open)
        "use_tqdm_on_load": False,
        "disable_log_stats": False,  # the acceptance counters are part of these
        "generation_config": "vllm",  # a checkpoint's own sampling defaults must not leak into the data
    }
    if config.num_gpus == 0 and config.max_num_batched_tokens >= config.max_model_len:
        # a prompt cut in chunks ends a CPU engine when its answer is drawn with a seed: "CPU Generator does not use
        # offset" (v1/worker/gpu_model_runner.py, _bookkeeping_sync)
        args["enable_chunked_prefill"] = False
    if _multimodal(Path(spec.verifier)):
        args["language_model_only"] = True  # no vision tower is built, nor its weights read: Eyrie sends text only
    if config.kv_cache_gib is not None:
        args["kv_cache_memory_bytes"] = int(config.kv_cache_gib * (1 << 30))
    else:
        args["gpu_memory_utilization"] = config.gpu_memory_utilization
    if spec.capture_layers:
        args["speculative_config"] = {
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": list(spec.capture_layers)}},
        }
        args["kv_transfer_config"] = {
            "kv_connector": "EyrieConnector",
            "kv_connector_module_path": "actors.vllm_connector",
            "kv_role": "kv_producer",
            "kv_connector_extra_config": {"shared_storage_path": str(transfer)},
        }
    elif spec.draft:
        args["per_request_spec_decode_metrics"] = "detailed"
        args["worker_extension_cls"] = "actors.vllm_draft_recorder.DraftRecorder"
        args["speculative_config"] = {
            "method": "eagle3",  # vLLM's own guess goes by the path's name
            "model": spec.draft.path,
            "num_speculative_tokens": spec.draft.num_speculative_tokens,
            **config.speculative,
        }
    return args | dict(config.extra)


def _multimodal(verifier: Path) -> bool:
    """A language model nested beside a vision tower."""
    config = read_config(verifier)
    return bool(config.get("text_config") and config.get("vision_config"))
