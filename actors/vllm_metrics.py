"""vLLM's own metrics on Ray's endpoint, as ray_vllm_…: its queue, its cache, tokens, latencies, accepted drafts."""

from typing import Any


def ray_stat_loggers() -> list[Any] | None:
    """For AsyncLLM; None where no Ray runs."""
    import ray

    if not ray.is_initialized():
        return None
    from vllm.v1.metrics.ray_wrappers import RayPrometheusStatLogger

    # A function: given the class itself, vLLM leaves its own logger out, and the benchmark reads that one's counters.
    return [lambda config, engine: RayPrometheusStatLogger(config, [engine])]
