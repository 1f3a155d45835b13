"""A worker extension (`worker_extension_cls`) that notes what vLLM's drafter is given and what it proposes.

vLLM's API gives only how many draft tokens were accepted. The draft gate must see the tokens themselves, and the states
that the draft reads: so `propose` is wrapped while one request at a time runs. vLLM 0.32 has two model runners with
a drafter each; nothing is wrapped, and nothing costs anything, outside `eyrie_record(True)`.
"""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import torch

import actors.vllm_cpu_sampling  # noqa: F401  for its effect in the worker


class DraftRecorder:
    """Mixed into vLLM's worker class: methods are called through `collective_rpc` on every rank."""

    model_runner: Any
    rank: int

    def eyrie_record(self, on: bool) -> None:
        """Start over, or stop."""
        self._eyrie_steps: list[dict[str, np.ndarray]] = []
        runner = self.model_runner
        drafter, read = (runner.drafter, _v1) if hasattr(runner, "drafter") else (runner.speculator, _v2)
        vars(drafter).pop("propose", None)
        if not on:
            return
        propose = drafter.propose
        signature = inspect.signature(propose)

        def recorded(*args: Any, **kwargs: Any) -> torch.Tensor:
            proposed = propose(*args, **kwargs)
            given = signature.bind(*args, **kwargs).arguments
            if not given.get("dummy_run"):
                self._eyrie_steps.append(read(given) | {"proposed": _array(proposed[0])})
            return proposed

        drafter.propose = recorded

    def eyrie_save(self, path: str) -> None:
        """Write what was noted to an .npz file; rank 0 only, since all have the same."""
        if self.rank == 0:
            arrays = {
                f"{step}/{key}": value for step, one in enumerate(self._eyrie_steps) for key, value in one.items()
            }
            with Path(path).open("wb") as file:
                np.savez(file, allow_pickle=False, **arrays)


def _v1(given: dict[str, Any]) -> dict[str, np.ndarray]:
    """vllm/v1/spec_decode/llm_base_proposer.py"""
    rejected = given.get("num_rejected_tokens_gpu")
    positions = given["target_positions"]
    return {
        "positions": _array(positions if positions.dim() == 1 else positions[0]),
        "states": _array(given["target_hidden_states"].float()),
        "rejected": np.zeros(1, int) if rejected is None else _array(rejected[:1]),
    }


def _v2(given: dict[str, Any]) -> dict[str, np.ndarray]:
    """vllm/v1/worker/gpu/spec_decode/target_dependent_ar/speculator.py"""
    tokens = given["input_batch"].num_tokens
    return {
        "positions": _array(given["input_batch"].positions[:tokens]),
        "states": _array(torch.cat(given["aux_hidden_states"], dim=-1)[:tokens].float()),
        "rejected": _array(given["num_rejected"][:1]),
    }


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().to("cpu", copy=True).numpy()
