"""Ranges and cross checks of a configuration, and what the command line says about mistakes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from actors.verifier import Verifier
from conf.schema import EyrieConfig, SourceConfig, SourceKind
from tests.composed import composed
from workflows.config import IN_JOB, ConfigError, load, validate

ROOT = Path(__file__).parents[2]
VERIFIER = Verifier(
    path="/v",
    fingerprint="0" * 16,
    hidden_size=576,
    num_layers=30,
    vocab_size=49152,
    max_position_embeddings=8192,
    architecture="L",
    num_attention_heads=9,
    rms_norm_eps=1e-5,
    added_tokens={"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2},
)
MAIN = """
from workflows.cli import launch
from workflows.config import validate

def task(cfg):
    validate(cfg, None)
    if cfg.name == "crash":
        raise ValueError("a bug of ours")
    print("ran", cfg.name, cfg.output_root)

if __name__ == "__main__":
    launch(task)
"""


def config(*overrides: str) -> EyrieConfig:
    return load(composed("experiment=smollm2_cpu", *overrides))


def merged(base: DictConfig, changes: DictConfig) -> DictConfig:
    both = OmegaConf.merge(base, changes)
    assert isinstance(both, DictConfig)
    return both


@pytest.fixture(scope="module")
def base() -> DictConfig:
    """Composing takes most of a second: tests of plain keys start from this."""
    return composed("experiment=smollm2_cpu")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["draft.aux_layers=[]"], r"draft\.aux_layers: empty"),
        (["draft.aux_layers=[15,2]"], r"draft\.aux_layers: \[15, 2\].*give \[2, 15\]"),
        (["draft.aux_layers=[2,2]"], r"draft\.aux_layers.*repeats"),
        (["draft.aux_layers=[0,2]"], r"draft\.aux_layers: id 0.*DeepSeek"),
        (["draft.aux_layers=[-1,2]"], r"draft\.aux_layers: -1 is negative"),
        (["draft.aux_layers=[2,31]"], r"draft\.aux_layers: \[31\] beyond.*1 to 30"),
        (["draft.draft_vocab_size=49153"], r"draft\.draft_vocab_size: 49153.*49152"),
        (["draft.draft_vocab_size=0"], r"draft\.draft_vocab_size: 0"),
        (["draft.head_dim=63"], r"draft\.head_dim: 63 must be even"),
        (["draft.num_key_value_heads=2"], r"draft\.num_attention_heads: 9 is no multiple.*2"),
        (["draft.num_key_value_heads=0"], r"draft\.num_key_value_heads: 0"),
        (["draft.fc_norm=true"], r"draft\.norm_before_fc and draft\.fc_norm exclude"),
        (["draft.rope_theta=0"], r"draft\.rope_theta: 0"),
        (["name=a/b"], r"name: 'a/b'"),
        (["train.epochs=0"], r"train\.epochs: 0"),
        (["train.lr=0"], r"train\.lr: 0"),
        (["train.lr=nan"], r"train\.lr: nan"),
        (["train.warmup_ratio=1.1"], r"train\.warmup_ratio"),
        (["train.batch_tokens=500"], r"train\.batch_tokens: 500.*train\.max_sample_tokens 512"),
        (["train.batch_tokens=2048", "train.bins=3"], r"train\.batch_tokens: 2048.*train\.bins 3; give a multiple"),
        (["train.batch_tokens=1024", "train.bins=4"], r"train\.batch_tokens: 1024.*train\.bins 4.*fewer bins"),
        (["train.num_workers=2"], r"train\.num_workers: 2 does not divide train\.bins 1.*or train\.bins=2"),
        (
            ["train.batch_tokens=3072", "train.bins=6", "train.num_workers=4"],
            r"train\.num_workers: 4 does not divide train\.bins 6.*give one of \[1, 2, 3, 6\]",
        ),
        (["train.bins=0"], r"train\.bins: 0"),
        (["train.checkpoint_every_steps=0"], r"train\.checkpoint_every_steps: 0"),
        (["train.loss_implementation=fused"], r"train\.loss_implementation: fused.*eager"),
        (["prompts.val_fraction=1"], r"prompts\.val_fraction: 1"),
        (["prompts.val_fraction=-0.1"], r"prompts\.val_fraction: -0\.1"),
        (["prompts.max_prompts=0"], r"prompts\.max_prompts: 0"),
        (["prompts.sources.bfcl.limit=0"], r"prompts\.sources\.bfcl\.limit: 0"),
        (["prompts.evals.mt_bench.path=bfcl"], r"prompts\.evals\.mt_bench: bfcl is trained on as .*\.bfcl"),
        (["generate.top_p=0"], r"generate\.top_p: 0"),
        (["generate.temperature=-1"], r"generate\.temperature: -1"),
        (["extract.samples_per_shard=0"], r"extract\.samples_per_shard: 0"),
        (["extract.workers.min=3", "extract.workers.max=2"], r"extract\.workers\.max: 2.*min 3"),
        (["generate.max_new_tokens=511"], r"engine\.max_model_len: 1024.*511 \+ 2 are 1025"),
        (["prompts.max_turns=4"], r"engine\.max_model_len: 1024.*512 \+ 2 are 1026"),
        (["benchmark.max_new_tokens=508"], r"engine\.max_model_len: 1024.*benchmark needs.*1025"),
        (["engine.max_model_len=8193"], r"engine\.max_model_len: 8193.*8192 positions"),
        (["engine.num_gpus=8", "engine.tensor_parallel_size=3"], r"engine\.num_gpus: 8 GPUs.*size 3"),
        (
            ["generate.temperature=0.5", "engine.max_num_batched_tokens=512"],
            r"engine\.max_num_batched_tokens: 512 .*raise it to 1024",
        ),
        (["engine.kv_cache_gib=null"], r"engine\.kv_cache_gib: no value.*CPU"),
        (["engine.dtype=bf16"], r"engine\.dtype: 'bf16'.*bfloat16"),
        (["engine.transfer_dir=shm"], r"engine\.transfer_dir: shm is relative"),
        (["benchmark.num_speculative_tokens=0"], r"benchmark\.num_speculative_tokens: 0"),
    ],
)
def test_one_mistake_is_one_message_that_names_the_key(base: DictConfig, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        validate(load(merged(base, OmegaConf.from_dotlist(overrides))), VERIFIER)
    assert "problems:" not in str(caught.value)


@pytest.mark.parametrize(
    "overrides",
    [
        ["draft.aux_layers=[1,30]", "draft.draft_vocab_size=49152"],
        ["engine.max_model_len=8192", "prompts.val_fraction=0"],
        ["engine.max_model_len=645"],
        ["train.num_workers=2", "train.batch_tokens=1024", "train.bins=2", "extract.workers.max=8"],
        ["engine=vllm_gpu", "engine.tensor_parallel_size=3"],
        ["engine=fake", "train.use_gpu=true"],
        ["draft.norm_before_fc=false", "draft.fc_norm=true"],
        ["train.muon_lr=0.02", "prompts.max_prompts=null", "convert.gate_prompts=0"],
    ],
)
def test_what_is_at_the_edge_of_its_range_is_accepted(overrides: list[str]) -> None:
    validate(config(*overrides), VERIFIER)


def test_a_run_needs_something_to_measure_on() -> None:
    with pytest.raises(ConfigError, match=r"prompts\.evals: empty; choose prompts=bundled"):
        validate(config("~prompts.evals.mt_bench", "~prompts.evals.human_eval"), VERIFIER)


def test_all_problems_are_named_at_once_and_the_verifiers_only_when_it_is_known() -> None:
    wrong = config("train.lr=-1", "train.epochs=0", "draft.draft_vocab_size=99999")
    with pytest.raises(ConfigError, match=r"2 problems:\n.*train\.epochs.*\n.*train\.lr"):
        validate(wrong, None)
    with pytest.raises(ConfigError, match=r"3 problems:"):
        validate(wrong, VERIFIER)


def test_gpus_of_an_engine_follow_its_tensor_parallel_size() -> None:
    assert config("engine=vllm_gpu", "engine.tensor_parallel_size=8").engine.num_gpus == 8


def test_relative_output_root_is_made_absolute_outside_a_job_and_refused_inside(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(IN_JOB, raising=False)
    assert config("output_root=runs/a").output_root == str(tmp_path / "runs/a")
    monkeypatch.setenv(IN_JOB, "{}")
    assert config(f"output_root={tmp_path}").output_root == str(tmp_path)
    with pytest.raises(ConfigError, match="output_root: runs/a is relative.*Give an absolute path"):
        config("output_root=runs/a")
    with pytest.raises(ConfigError, match="output_root: s3://b/c is an object store"):
        config("output_root=s3://b/c")


def test_output_root_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EYRIE_OUTPUT_ROOT", str(tmp_path / "x"))
    assert config().output_root == str(tmp_path / "x")


def test_missing_values_are_named_also_inside_new_entries() -> None:
    with pytest.raises(ConfigError, match=r"no value for prompts\.sources\.mine\.kind"):
        config("++prompts.sources={mine: {path: x}}")
    with pytest.raises(ConfigError, match=r"verifier\.source.*experiment=smollm2_cpu"):
        load(composed())


def test_prompts_of_ones_own_are_added_to_the_bundled_ones_or_replace_them() -> None:
    mine = "++prompts.sources={mine: {kind: file, path: a.jsonl}}"
    bundled = set(config().prompts.sources)
    assert bundled and set(config(mine).prompts.sources) == {*bundled, "mine"}
    only = config(mine, *(f"~prompts.sources.{name}" for name in sorted(bundled))).prompts.sources
    assert only == {"mine": SourceConfig(kind=SourceKind.file, path="a.jsonl")}


def test_an_interpolation_to_nowhere_is_a_users_mistake(base: DictConfig) -> None:
    with pytest.raises(ConfigError, match="train.lr"):
        load(merged(base, OmegaConf.create({"train": {"lr": "${nope}"}})))


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(MAIN)
    env = os.environ | {"PYTHONPATH": str(ROOT), "EYRIE_OUTPUT_ROOT": str(folder / "root")}
    env.pop("HYDRA_FULL_ERROR", None)
    command = [sys.executable, "program.py", *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_command_line_runs_and_keeps_its_files_below_output_root(tmp_path: Path) -> None:
    done = call(tmp_path, "experiment=smoke")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"ran smoke {tmp_path / 'root'}\n"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["program.py", "root"]
    assert list((tmp_path / "root").glob("hydra/*/*/.hydra/config.yaml"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["experiment=smoke", "train.lrr=1"], "error: train.lrr: there is no such key. Did you mean lr?"),
        (["experiment=smoke", "+train.lrr=1"], "error: train.lrr: there is no such key. Did you mean lr?"),
        (["experiment=smoke", "train.lr=0"], "error: train.lr: 0.0 must be greater than 0"),
        (["experiment=smoke", "engine.env.A=1"], "+engine.env.A=value"),
        (["experiment=smoke", "+prompts.sources.mine={path: x, kind: file}"], "write '++prompts.sources={<name>:"),
        (["train=1"], "error: Config group override must be"),
        (["experiment=nope"], "Could not find 'experiment/nope'"),
        ([], "experiment=smollm2_cpu"),
        (["experiment=smoke", "output_root=program.py"], "error: output_root: "),
    ],
)
def test_a_users_mistake_is_a_message_without_a_traceback_and_exit_code_2(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = call(tmp_path, *arguments)
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""


def test_our_own_mistake_shows_its_traceback(tmp_path: Path) -> None:
    done = call(tmp_path, "experiment=smoke", "name=crash")
    assert done.returncode == 1 and "Traceback" in done.stderr and "a bug of ours" in done.stderr
