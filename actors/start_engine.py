"""Starts the engine that a spec asks for, in this process."""

import os

from actors.cpu_environment import cpu_engine_environment
from actors.engine import Engine, EngineSpec
from conf.schema import EngineKind


def start(spec: EngineSpec) -> Engine:
    """The engine of a spec. Environment first: vLLM reads it when it is imported, its processes when they start."""
    if spec.config.kind is EngineKind.fake:
        from actors.fake_engine import FakeEngine

        return FakeEngine(spec)
    if spec.config.num_gpus == 0:
        os.environ.update(cpu_engine_environment(spec.config.enforce_eager))
    os.environ.update(spec.config.env)
    from actors.vllm_engine import VllmEngine

    return VllmEngine(spec)
