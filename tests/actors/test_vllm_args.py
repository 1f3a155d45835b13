"""The arguments that vLLM's engine is started with, without vLLM."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from actors.engine import DraftSpec, EngineSpec
from actors.vllm_args import engine_args
from conf.schema import EngineConfig
from tests.tiny_kimi import CONFIG

TRANSFER = Path("/dev/shm/states")


def args(verifier: Path, *, capture: tuple[int, ...] = (), draft: DraftSpec | None = None, **config: Any) -> Any:
    return engine_args(EngineSpec(str(verifier), EngineConfig(**config), capture_layers=capture, draft=draft), TRANSFER)


def test_memory_is_a_share_of_the_gpu_or_a_fixed_kv_cache(tiny_llama: Path) -> None:
    assert args(tiny_llama)["gpu_memory_utilization"] == 0.9
    fixed = args(tiny_llama, kv_cache_gib=0.5)
    assert fixed["kv_cache_memory_bytes"] == 1 << 29 and "gpu_memory_utilization" not in fixed


def test_a_capturing_engine_names_its_layers_and_where_states_go(tiny_llama: Path) -> None:
    found = args(tiny_llama, capture=(1, 2, 4))
    told = found["speculative_config"]["draft_model_config"]["hf_config"]
    assert told == {"eagle_aux_hidden_state_layer_ids": [1, 2, 4]}
    assert found["kv_transfer_config"]["kv_connector_extra_config"] == {"shared_storage_path": str(TRANSFER)}
    assert not found["enable_prefix_caching"]


def test_a_draft_is_eagle3_whatever_its_path_says_and_a_plain_engine_has_none(tiny_llama: Path) -> None:
    found = args(tiny_llama, draft=DraftSpec("/drafts/medusa", 4))["speculative_config"]
    assert (found["method"], found["model"], found["num_speculative_tokens"]) == ("eagle3", "/drafts/medusa", 4)
    assert not args(tiny_llama).keys() & {"speculative_config", "kv_transfer_config"}


def test_a_multimodal_verifier_runs_without_its_vision_tower(tiny_llama: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_llama, tmp_path / "kimi"))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    assert args(folder)["language_model_only"] is True
    assert args(folder, extra={"language_model_only": False})["language_model_only"] is False


@pytest.mark.parametrize("lacking", ["vision_config", "text_config"])
def test_a_text_model_is_not_told_so(lacking: str, tiny_llama: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_llama, tmp_path / "kimi"))
    (folder / "config.json").write_text(json.dumps({k: v for k, v in CONFIG.items() if k != lacking}))
    assert "language_model_only" not in args(folder) and "language_model_only" not in args(tiny_llama)


@pytest.mark.parametrize(("gpus", "batched", "whole"), [(0, 4096, True), (0, 512, False), (1, 4096, False)])
def test_on_a_cpu_prompts_are_not_cut_where_they_need_not_be(
    gpus: int, batched: int, whole: bool, tiny_llama: Path
) -> None:
    found = args(tiny_llama, num_gpus=gpus, max_num_batched_tokens=batched, max_model_len=1024)
    assert ("enable_chunked_prefill" in found) == whole and not found.get("enable_chunked_prefill")


def test_extra_wins(tiny_llama: Path) -> None:
    found = args(tiny_llama, extra={"dtype": "float16", "seed": 3})
    assert (found["dtype"], found["seed"]) == ("float16", 3)
