"""Bad input gets one message that names the key and the way out, before an engine starts, and leaves nothing behind."""

import json
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import use_tiktoken
from tests.tiny_draft import rewrite_tensors
from tests.tiny_run import overrides, run, write_prompts_file
from workflows import cluster
from workflows.errors import ConfigError

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whoever asks for Ray here has started an engine too early."""

    def started(_: object) -> None:
        raise AssertionError("Ray was started")

    monkeypatch.setattr(cluster.Session, "ensure_ray", started)
    yield


def refused(folder: Path, verifier: Path, *more: str) -> str:
    """The message of a run that is refused and leaves no step done."""
    with pytest.raises(ConfigError) as caught:
        run(folder, verifier, *more)
    assert list(folder.rglob("record.json")) == [] and list(folder.rglob("part-*")) == []
    assert list(folder.rglob(".tmp-*")) == [] and not (folder / "root" / ".lease").exists()
    return str(caught.value)


def has(message: str, *parts: str) -> None:
    missing = [part for part in parts if part not in message]
    assert not missing, f"{missing} not in: {message}"


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("++train.lrr=1", ["train.lrr: there is no such key", "Did you mean lr?"]),
        ("++typo=1", ["typo: there is no such key"]),
        ("+cluster.labels.extract={group: -spot}", ["cluster.labels.extract: group='-spot'", "'!value'"]),
        ("train.lr=0", ["train.lr: 0.0 must be greater than 0"]),
        ("draft.aux_layers=[3,1]", ["draft.aux_layers: [3, 1] is not ascending", "give [1, 3]"]),
        ("draft.aux_layers=[1,2,5]", ["draft.aux_layers: [5] beyond the verifier's 4 layers", "1 to 4"]),
        ("draft.draft_vocab_size=513", ["draft.draft_vocab_size: 513", "vocabulary of 512; lower it"]),
        ("engine.max_model_len=1025", ["engine.max_model_len: 1025", "1024 positions; lower it"]),
        ("prompts.max_prompt_tokens=1000", ["engine.max_model_len: 1024", "prompts.max_prompt_tokens 1000", "raise"]),
        ("++prompts.sources.mine.path=absent.jsonl", ["prompts.sources.mine.path: there is no file absent", "give a"]),
        ("++prompts.evals.asked.path=absent.jsonl", ["prompts.evals.asked.path: there is no file absent", "give a"]),
        ("++prompts.sources.mine.column=text", ["prompts.sources.mine.column: no column 'text'", "messages"]),
        ("~prompts.sources.mine", ["prompts.sources: empty", "choose prompts=bundled"]),
        ("~prompts.evals.asked", ["prompts.evals: empty", "choose prompts=bundled"]),
        ("verifier.source=/no/such/folder", ["verifier.source: there is no folder", "Give a checkpoint folder"]),
        ("verifier.source=bundled:other", ["verifier.source: no bundled verifier 'other'", "bundled:smollm2"]),
        (
            "verifier.kept_tokens=['<|im_ende|>']",
            ["verifier.kept_tokens: '<|im_ende|>' is no added", "Did you mean '<|im_end|>'", "'<|endoftext|>'"],
        ),
    ],
)
def test_a_bad_key_is_refused(override: str, parts: list[str], tiny_llama: Path, tmp_path: Path) -> None:
    has(refused(tmp_path, tiny_llama, override), *parts)


def test_ranks_that_cannot_split_the_heads_are_refused(tiny_llama: Path, tmp_path: Path) -> None:
    message = refused(tmp_path, tiny_llama, "engine=vllm_cpu", "engine.tensor_parallel_size=3")
    has(message, "engine.tensor_parallel_size: 3", "the verifier's 2 attention heads", "give one of 1, 2")


def cut(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:100])


def pointer(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")


def index(folder: Path) -> None:
    names = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(names))


def no_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()


def quantized(folder: Path) -> None:
    def pack(tensors: dict[str, Any]) -> None:
        tensors["lm_head.weight_packed"] = tensors.pop("lm_head.weight").int()

    rewrite_tensors(folder, pack)


def config(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return change


KIMI = "KimiK25ForConditionalGeneration"


@pytest.mark.parametrize(
    ("damage", "parts"),
    [
        (quantized, ["quantized lm_head", "The draft's targets", "quantization_config ignores lm_head"]),
        (config(architectures=[KIMI]), ["no integer media_placeholder_token_id", "Add ", ": 163605"]),
        (config(model_type="condor"), ["model_type 'condor'", "Use a checkpoint in a native format"]),
        (lambda f: use_tiktoken(f, None), ["has tiktoken.model and no tokenizer.json", "Copy tokenizer_config.json"]),
        (lambda f: use_tiktoken(f, code=False), ["lacks tokenization_kimi.py", "Copy the *.py files"]),
        (lambda f: (f / "model.safetensors").unlink(), ["holds no *.safetensors weights", "Point it at a complete"]),
        (lambda f: (f / "tokenizer.json").unlink(), ["holds no tokenizer", "Copy the tokenizer files"]),
        (lambda f: (f / "config.json").unlink(), ["has no config.json", "Give a Hugging Face checkpoint folder"]),
        (lambda f: (f / "config.json").write_text("{"), ["config.json cannot be read", "Copy it"]),
        (lambda f: (f / "config.json").write_text("{}"), ["has no key", "is it a language model?"]),
        (cut, ["no safetensors file, or is cut", "Download it again"]),
        (pointer, ["git-lfs pointer", "Download it again"]),
        (index, ["lacks 1 of 2 weight files, first model-00002", "Download the checkpoint again"]),
        (no_template, ["has no chat template", "use an instruction-tuned model"]),
    ],
)
def test_a_verifier_folder_that_is_not_whole_is_refused(
    damage: Callable[[Path], object], parts: list[str], tiny_llama: Path, tmp_path: Path
) -> None:
    shutil.copytree(tiny_llama, tmp_path / "verifier")
    damage(tmp_path / "verifier")
    has(refused(tmp_path, tmp_path / "verifier"), "verifier.source: ", *parts)


def test_a_checkpoints_own_tokenizer_code_is_refused_unasked(tiny_llama: Path, tmp_path: Path) -> None:
    use_tiktoken(Path(shutil.copytree(tiny_llama, tmp_path / "verifier")))
    message = refused(tmp_path, tmp_path / "verifier")
    has(
        message, "verifier.trust_remote_code: false", "verifier/tokenization_kimi.py", "verifier.trust_remote_code=true"
    )


def test_prompts_that_leave_nothing_are_refused(tiny_llama: Path, tmp_path: Path) -> None:
    (tmp_path / "blank.jsonl").write_text('{"messages": "  "}\n{"messages": "?"}\n')
    blank = tmp_path / "blank.jsonl"
    message = refused(tmp_path, tiny_llama, f"++prompts.sources.mine.path={blank}")
    has(message, "prompts.sources leave no prompt: 2 read", "'empty': 2", "Add sources")
    message = refused(tmp_path, tiny_llama, f"++prompts.evals.asked.path={blank}")
    has(message, "prompts.evals.asked leaves no prompt: 2 read", "give another set")
    blank.write_text("")
    has(
        refused(tmp_path, tiny_llama, f"++prompts.sources.mine.path={blank}"), "prompts.sources leave no prompt: 0 read"
    )


def test_a_prompt_longer_than_allowed_is_refused_or_dropped_as_told(tiny_llama: Path, tmp_path: Path) -> None:
    long = write_prompts_file(tmp_path / "long.jsonl", 3, "word " * 400)
    message = refused(tmp_path, tiny_llama, f"++prompts.sources.mine.path={long}", "prompts.too_long=error")
    has(message, "prompt mine/", "more than prompts.max_prompt_tokens=256", "Raise it", "prompts.too_long=drop")
    message = refused(tmp_path, tiny_llama, f"++prompts.sources.mine.path={long}")
    has(message, "prompts.sources leave no prompt: 3 read", "'too_long': 3", "prompts.max_prompt_tokens")


def test_a_set_that_is_trained_and_measured_on_is_refused(tiny_llama: Path, tmp_path: Path) -> None:
    same = f"++prompts.evals={{mine: {{kind: file, path: {tmp_path / 'asked.jsonl'}}}}}"
    has(refused(tmp_path, tiny_llama, same), "prompts.evals.mine: prompts.sources.mine has that name", "rename")


def test_an_output_root_that_cannot_be_written_is_refused(tiny_llama: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    message = refused(tmp_path, tiny_llama, f"output_root={tmp_path / 'file' / 'root'}")
    has(message, "output_root: cannot write to", "Give a directory that this user may write")


def test_a_full_disk_is_refused_before_anything_is_written(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("workflows.runner.shutil.disk_usage", lambda _: usage(1 << 40, 1 << 40, 1 << 20))
    has(refused(tmp_path, tiny_llama), "output_root: 0.0 GiB free", "Make room")


def test_a_disk_that_fills_up_in_the_middle_ends_in_a_message_and_no_record(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("actors.commit.os.fsync", full)
    has(refused(tmp_path, tiny_llama), "output_root: no room left", "Make room, and run the same command again")


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("+train.lrr=1", "error: train.lrr: there is no such key. Did you mean lr?"),
        ("++train.epochs=many", "error: train.epochs: Value 'many' of type 'str' could not be converted to Integer"),
        ("draft.draft_vocab_size=513", "error: draft.draft_vocab_size: 513 is more than the verifier's"),
        ("prompts.too_long=error", "error: prompt mine/"),
    ],
)
def test_the_command_ends_with_one_message_and_exit_code_2(
    override: str, part: str, tiny_llama: Path, tmp_path: Path
) -> None:
    arguments = overrides(tmp_path, tiny_llama, override, "prompts.max_prompt_tokens=20")
    command = [sys.executable, "-m", "workflows.eagle3", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=dict(os.environ), check=False)
    assert done.returncode == 2 and part in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""
    assert list(tmp_path.rglob("record.json")) == []
