"""The plan of a run: its numbers, worked out by hand for Kimi-K2.5, and what it refuses."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants
from omegaconf import DictConfig, OmegaConf

from actors.shards import SampleStates, ShardMeta, commit
from actors.units import GIB
from conf.schema import EngineKind, EyrieConfig
from tests.composed import composed as compose
from tests.tiny_draft import TINY_DRAFT
from tests.tiny_run import run
from workflows.config import load, on_this_machine
from workflows.errors import ConfigError
from workflows.footprint import data, extract_hours, step_needs, train_hours
from workflows.memory import draft_parameters, engine_memory, train_memory
from workflows.plan import plan
from workflows.refusals import hardware_problems, refusals
from workflows.verifier_facts import VerifierFacts, folder_facts, verifier_facts

ROOT = Path(__file__).parents[2]
Make = Callable[..., EyrieConfig]


@pytest.fixture(autouse=True)
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty hub cache without a network."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture(scope="module")
def composed() -> dict[str, DictConfig]:
    """Composing takes most of a second: changes are merged into these."""
    whole = {name: compose(f"experiment={name}") for name in ("kimi_k25", "smollm2_cpu")}
    return {**whole, "mla": compose("experiment=kimi_k25", "draft=kimi_k25_mla")}


@pytest.fixture
def make(composed: dict[str, DictConfig], tmp_path: Path) -> Make:
    """The configuration of an experiment with these keys changed."""

    def made(name: str, *changes: str) -> EyrieConfig:
        changed = OmegaConf.merge(composed[name], OmegaConf.from_dotlist([f"output_root={tmp_path}", *changes]))
        assert isinstance(changed, DictConfig)
        return on_this_machine(load(changed))

    return made


def facts_of(cfg: EyrieConfig) -> VerifierFacts:
    return verifier_facts(cfg.verifier, Path(cfg.output_root))


def test_kimi_engines_hold_the_states_of_a_token_on_every_rank(make: Make) -> None:
    cfg = make("kimi_k25")
    extract, benchmark = engine_memory(cfg, facts_of(cfg))
    assert extract.kv == benchmark.kv == 61 * 576 * 2 == 70_272
    assert (extract.states, benchmark.states) == (57_344, 0)
    assert (extract.draft_kv, benchmark.draft_kv) == (0, 2 * 8 * 128 * 2)
    assert extract.weights == 594_205_259_776 // 8  # 69.2 GiB
    assert benchmark.draft_weights == (961_572_864 + 32_000 * 7168) * 2 // 8
    assert extract.room == int(139 * 0.9 * GIB) - extract.weights
    assert extract.tokens == extract.room // 127_616 == 470_547


def test_kimi_draft_with_mla_keeps_one_latent_a_token(make: Make) -> None:
    cfg = make("mla")
    assert engine_memory(cfg, facts_of(cfg))[-1].draft_kv == 576 * 2
    assert train_memory(cfg, facts_of(cfg)).parameters == 666_815_488


def test_more_ranks_share_heads_but_not_latents_and_states(make: Make) -> None:
    cfg = make("kimi_k25", "engine.tensor_parallel_size=64", "engine.num_gpus=64")
    extract, benchmark = engine_memory(cfg, facts_of(cfg))
    assert (extract.per_token, benchmark.draft_kv) == (127_616, 2 * 128 * 2)


def test_kimi_training_is_fp32_with_what_the_optimizer_keeps(make: Make) -> None:
    cfg = make("kimi_k25", "train.optimizer=adamw")
    memory = train_memory(cfg, facts_of(cfg))
    # q, k, v; o; gate, up, down; fc; four norms
    assert memory.parameters == 3 * 8192 * 14336 + 7168 * 8192 + 3 * 18432 * 7168 + 7168 * 21504 + 4 * 7168
    assert memory.weights == memory.gradients == memory.buckets == 4 * 961_572_864
    assert memory.optimizer == 8 * 961_572_864
    assert memory.frozen == 4 * 7168 * (163_840 + 2 * 32_000)
    muon = train_memory(make("kimi_k25"), facts_of(cfg))
    assert muon.optimizer == 4 * 961_572_864 + 4 * 4 * 7168  # AdamW still has the norms
    alone = train_memory(make("kimi_k25", "train.num_workers=1"), facts_of(cfg))
    assert alone.buckets == 0


def test_training_memory_counts_what_speculators_trains_and_freezes(tiny_llama: Path, make: Make) -> None:
    import torch

    from actors.draft_model import build_draft
    from actors.vocabulary import Vocabulary

    cfg = make("smollm2_cpu", f"verifier.source={tiny_llama}")
    cfg.draft = replace(TINY_DRAFT, draft_vocab_size=512)
    facts, whole = facts_of(cfg), Vocabulary(None, None, 1.0, 1)
    served = replace(facts.verifier, path=str(tiny_llama))
    model = build_draft(cfg.draft, served, whole, ttt_steps=1, attention="eager", seed=0)
    memory = train_memory(cfg, facts)
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == memory.parameters
    frozen = sum(p.numel() for n, p in model.named_parameters() if not p.requires_grad and "norm" not in n)
    assert frozen * 4 == memory.frozen
    assert all(p.dtype == torch.float32 for p in model.parameters())


def test_kimi_data_and_hours(make: Make) -> None:
    rates = ["plan.extract_tokens_per_s=4000", "plan.train_tokens_per_s=20000", "extract.workers.max=2"]
    cfg = make("kimi_k25", *rates)
    found = data(cfg, facts_of(cfg))
    assert (found.conversations, found.tokens_each, found.shards) == (20_000, 256 + 2048, 313)
    assert found.states == 20_000 * 2304 * (57_344 + 13)
    assert extract_hours(cfg, found.tokens) == pytest.approx(20_000 * 2304 / 8000 / 3600)
    assert train_hours(cfg, found) == pytest.approx(20_000 * 0.95 * 2304 * 3 / 160_000 / 3600)
    shorter = make("kimi_k25", "plan.response_tokens=744", "plan.prompt_tokens=9999")
    assert data(shorter, facts_of(cfg)).tokens_each == 2048 + 744


def test_a_shard_is_as_large_as_planned(tmp_path: Path, make: Make) -> None:
    cfg = make("smollm2_cpu")
    planned = data(cfg, facts_of(cfg))
    tokens = 2000
    sample = SampleStates(0, np.zeros(tokens, np.int32), np.ones(tokens, bool), np.zeros((tokens, 4, 576), np.uint16))
    row = commit(tmp_path, 0, 1, [sample], ShardMeta("v", (2, 15, 27, 30), 576, "e", "c"), {})
    assert row.bytes == pytest.approx(tokens * planned.token, rel=0.01)


def test_without_a_limit_nothing_is_said_of_the_disk(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    cfg = make("kimi_k25", "prompts.max_prompts=null")
    cfg.prompts.sources["ultrachat"].limit = None
    assert data(cfg, facts_of(cfg)).states is None and refusals(cfg, facts_of(cfg)) == []
    plan(cfg)
    assert "give prompts.max_prompts" in capsys.readouterr().out


def test_a_llama_keeps_its_heads_and_a_cpu_its_kv_cache(tiny_llama: Path, make: Make) -> None:
    source = f"verifier.source={tiny_llama}"
    cfg = make("smollm2_cpu", source, "engine.dtype=bfloat16", "draft.aux_layers=[1,2,3]")
    extract, benchmark = engine_memory(cfg, facts_of(cfg))
    assert (extract.kv, extract.states) == (4 * 2 * 1 * 64 * 2, 4 * 128 * 2)
    assert benchmark.draft_kv == 2 * 3 * 64 * 2
    assert extract.room == 2 * GIB and extract.weights == folder_facts(tiny_llama).weight_bytes
    wide = make("smollm2_cpu", source, "engine.dtype=float32", "draft.aux_layers=[1,2,3]")
    assert engine_memory(wide, facts_of(wide))[0].kv == 2 * extract.kv


def test_steps_ask_for_their_gpus(make: Make) -> None:
    cfg = make("kimi_k25", "extract.mode=two_pass", "extract.workers.max=3")
    asked = {needs.step: needs.workers * needs.gpus for needs in step_needs(cfg)}
    assert asked == {"generate": 24, "extract": 24, "train": 8, "convert": 8, "benchmark": 8}
    assert [one.step for one in engine_memory(cfg, facts_of(cfg))] == ["generate", "extract", "benchmark"]


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        (
            ["engine.tensor_parallel_size=4", "engine.num_gpus=4"],
            ["engine.tensor_parallel_size: each of 4 ranks", "139.0 x engine.gpu_memory_utilization 0.9",
             "engine.max_model_len 8192", "give engine.tensor_parallel_size=8"],
        ),
        (
            ["engine.gpu_memory_utilization=0.5"],
            ["engine.tensor_parallel_size=16", "engine.gpu_memory_utilization=0.51", "engine.max_model_len=694",
             "lower prompts.max_prompt_tokens"],
        ),
        (["cluster.gpu_gib=22"], ["no engine.tensor_parallel_size up to 16 fits"]),
        (["engine.kv_cache_gib=0.5"], ["engine.kv_cache_gib: 0.5, but", "give engine.kv_cache_gib=0.98"]),
        (["engine.kv_cache_gib=80"], ["engine.kv_cache_gib: 80.0 and 69.4", "exceed", "give engine.kv_cache_gib=69.5"]),
        (["cluster.gpu_gib=20"], ["cluster.gpu_gib: 20.0 GiB, but a training worker holds 20.4", "smaller draft"]),
        (["cluster.gpu_gib=22", "train.optimizer=adamw"], ["worker holds 23.99", "give train.optimizer=muon"]),
        (["plan.gpus=4"], ["engine.tensor_parallel_size: 8 GPUs for one engine, but plan.gpus is 4; give at most 4"]),
        (["plan.gpus=4"], ["train.num_workers: 8 take 8 GPUs", "give train.num_workers=4, or plan.gpus=8"]),
        (
            ["plan.gpus=20", "extract.workers.max=3"],
            ["extract.workers.max: 3 engines of engine.tensor_parallel_size 8 take 24 GPUs", "extract.workers.max=2"],
        ),
        (
            ["plan.disk_gib=1000"],
            ["prompts.max_prompts: 20000 conversations of 2304 tokens", "prompts.max_prompts=7843 would fit",
             "generate.max_new_tokens (now 2048)"],
        ),
        (["plan.disk_gib=20", "plan.response_tokens=100"], ["not one conversation", "plan.response_tokens (now 100)"]),
    ],
)  # fmt: skip
def test_what_cannot_fit_is_refused_with_what_would(changes: list[str], parts: list[str], make: Make) -> None:
    cfg = make("kimi_k25", *changes)
    message = "\n".join(refusals(cfg, facts_of(cfg)))
    assert [part for part in parts if part not in message] == [], message


def test_what_is_offered_fits(make: Make) -> None:
    """Each value of a refusal, taken over, ends it."""
    low = ["engine.gpu_memory_utilization=0.5"]
    facts = facts_of(make("kimi_k25"))
    for way in ("engine.tensor_parallel_size=16", "engine.gpu_memory_utilization=0.51", "engine.max_model_len=694"):
        assert refusals(make("kimi_k25", *low, way), facts) == []
    assert refusals(make("kimi_k25", "engine.kv_cache_gib=80"), facts) != []
    assert refusals(make("kimi_k25", "engine.kv_cache_gib=69.54"), facts) == []
    fewer = ["plan.disk_gib=1000", "prompts.max_prompts=7843"]
    assert refusals(make("kimi_k25", *fewer), facts) == []
    assert refusals(make("kimi_k25", *fewer, "prompts.max_prompts=7844"), facts) != []


def test_nothing_is_refused_where_nothing_is_said_of_the_hardware(make: Make) -> None:
    small = make("kimi_k25", "cluster.gpu_gib=null", "engine.tensor_parallel_size=1", "engine.num_gpus=1")
    assert refusals(small, facts_of(small)) == []
    fake = make("kimi_k25", "engine.kind=fake", "cluster.gpu_gib=30")
    assert fake.engine.kind is EngineKind.fake and refusals(fake, facts_of(fake)) == []


@pytest.mark.parametrize(
    "change",
    ["cluster.gpu_gib=0", "plan.disk_gib=-1", "plan.extract_tokens_per_s=0", "plan.train_tokens_per_s=-2",
     "plan.prompt_tokens=0", "plan.response_tokens=0", "plan.gpus=-1"],
)  # fmt: skip
def test_hardware_that_cannot_be_is_refused(change: str, make: Make) -> None:
    (problem,) = hardware_problems(make("kimi_k25", change))
    assert problem.startswith(change.split("=")[0])
    with pytest.raises(ConfigError, match=change.split("=")[0]):
        plan(make("kimi_k25", change))


def test_the_table_comes_before_the_refusal(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=r"(?s)2 problems:.*engine\.tensor_parallel_size.*prompts\.max_prompts"):
        plan(make("kimi_k25", "engine.tensor_parallel_size=4", "engine.num_gpus=4", "plan.disk_gib=1000"))
    printed = capsys.readouterr().out
    for part in ("553.4 GiB of weights", "70,272", "57,344", "138.35", "2,461.50", "give plan.extract_tokens_per_s"):
        assert part in printed


def test_a_budget_for_shards_is_the_disk_where_nothing_else_is_said(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    cfg = make("kimi_k25")
    each = data(cfg, facts_of(cfg)).tokens_each * data(cfg, facts_of(cfg)).token
    fit = 1000 * GIB // each  # checkpoints are not in that budget
    with pytest.raises(ConfigError, match=rf"prompts\.max_prompts=({fit}|{fit - 1}) would fit"):
        plan(make("kimi_k25", "extract.disk_budget_gib=1000"))
    assert "GiB of disk (extract.disk_budget_gib, and the checkpoints)" in capsys.readouterr().out
    plan(make("kimi_k25", "extract.disk_budget_gib=2462"))
    with pytest.raises(ConfigError, match=r"prompts\.max_prompts=7843 would fit"):
        plan(make("kimi_k25", "extract.disk_budget_gib=4000", "plan.disk_gib=1000"))
    with pytest.raises(ConfigError, match=r"extract\.disk_budget_gib: 0\.0 must be greater than 0"):
        plan(make("kimi_k25", "extract.disk_budget_gib=0"))


def test_a_rate_says_where_it_comes_from(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    plan(make("kimi_k25", "plan.disk_gib=4000", "plan.extract_tokens_per_s=4000"))
    printed = capsys.readouterr().out
    assert "extract, workers 1 at 4,000 tokens/s each (given: plan.extract_tokens_per_s)    3.2" in printed
    assert "train: give plan.train_tokens_per_s " in printed


def test_a_draft_that_does_not_match_the_verifier_is_refused_without_a_table(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=r"draft\.aux_layers: \[62\] beyond the verifier's 61 layers"):
        plan(make("kimi_k25", "draft.aux_layers=[2,30,62]"))
    with pytest.raises(ConfigError, match=r"verifier\.source: cannot read config.json of 'nest/absent'"):
        plan(make("kimi_k25", "verifier.source=nest/absent"))
    assert capsys.readouterr().out == ""


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"EYRIE_OUTPUT_ROOT": str(folder / "root"), "HF_HUB_CACHE": str(folder / "hub")}
    command = [sys.executable, "-m", "workflows.plan", *arguments]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def test_the_command_plans_the_demo(tmp_path: Path) -> None:
    done = call(tmp_path, "experiment=smollm2_cpu")
    assert done.returncode == 0, done.stderr
    for part in ("bundled:smollm2", "host memory", "GiB for caches (engine.kv_cache_gib)", "98,304"):
        assert part in done.stdout


def test_the_command_ends_with_2_and_the_table_when_something_cannot_fit(tmp_path: Path) -> None:
    done = call(tmp_path, "experiment=kimi_k25", "plan.disk_gib=1000")
    assert done.returncode == 2 and "error: prompts.max_prompts: 20000" in done.stderr
    assert "Traceback" not in done.stderr and "57,344" in done.stdout


def test_a_plan_imports_nothing_heavy() -> None:
    code = "import sys, workflows.plan; print({'ray', 'torch', 'vllm', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_run_is_refused_before_ray_when_its_hardware_is_too_small(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(_: object) -> None:
        raise AssertionError("Ray was started")

    monkeypatch.setattr("workflows.cluster.Session.ensure_ray", started)
    with pytest.raises(ConfigError, match=r"prompts\.max_prompts: 18 conversations"):
        run(tmp_path, tiny_llama, "plan.disk_gib=0.0001")
    with pytest.raises(ConfigError, match=r"cluster\.gpu_gib: -1"):
        run(tmp_path, tiny_llama, "cluster.gpu_gib=-1")
    assert list((tmp_path / "root").rglob("record.json")) == []


def test_every_tensor_of_the_draft_is_counted_once(make: Make) -> None:
    cfg = make("kimi_k25")
    counted = draft_parameters(cfg.draft, facts_of(cfg))
    assert sum(counted.values()) == 961_572_864 + (163_840 + 32_000) * 7168
