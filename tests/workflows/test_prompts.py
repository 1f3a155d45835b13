"""The prompts step: what is kept, what is dropped and counted, and that the same seed gives the same rows."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from actors.verifier import Verifier, read_verifier
from conf.schema import OnTooLong, PromptsConfig, SourceConfig, SourceKind
from workflows.prompt_table import SCHEMA, PromptRow, read_prompts, write_prompts
from workflows.steps import prompts as step

Step = Callable[..., tuple[dict[str, Any], list[PromptRow]]]
EVAL_QUESTION = "Compose an engaging travel blog post about a recent trip to Hawaii"


@pytest.fixture(scope="module")
def verifier(tiny_llama: Path) -> Verifier:
    return read_verifier(tiny_llama)


@pytest.fixture
def run(verifier: Verifier, tmp_path: Path) -> Step:
    """Runs the step; checks what holds for every run."""

    def run(cfg: PromptsConfig, out: Path = tmp_path / "out") -> tuple[dict[str, Any], list[PromptRow]]:
        account = step.prompts(cfg, verifier, False, out)
        rows = read_prompts(out / "prompts.parquet")
        assert account["read"] == account["used"] + sum(account["dropped"].values())
        assert account["used"] == len(rows) == account["train"] + account["val"] == sum(account["sources"].values())
        assert [r.sample for r in rows] == list(range(len(rows)))
        assert all(r.messages[-1]["role"] == "user" for r in rows)
        assert json.loads(json.dumps(account)) == account
        assert not list(out.rglob(".tmp-*"))
        return account, rows

    return run


def source(file: Path, *said: Any, limit: int | None = None) -> SourceConfig:
    file.write_text("".join(json.dumps({"messages": m}) + "\n" for m in said))
    return SourceConfig(kind=SourceKind.file, path=str(file), limit=limit)


def turns(*said: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": s} for s in said]


def numbered(word: str, count: int) -> list[str]:
    return [f"{word} {i}" for i in range(count)]


def texts(rows: list[PromptRow]) -> set[str]:
    return {r.messages[-1]["content"] for r in rows}


def test_every_reason_to_drop_is_counted(run: Step, tmp_path: Path) -> None:
    said = ["Why does bread rise?", " why does  BREAD rise?\n", "   ", 7, "Compare summer with winter.", "word " * 200]
    mine = source(
        tmp_path / "mine.jsonl", *said, f"Please: {EVAL_QUESTION.lower()}, now", *numbered("fill", 5), limit=7
    )
    evals = source(tmp_path / "eval.jsonl", EVAL_QUESTION)
    cfg = PromptsConfig(
        sources={"mine": mine}, evals={"bench": evals}, max_prompts=5, max_prompt_tokens=100, too_long=OnTooLong.drop
    )
    account, rows = run(cfg)
    dropped = account["dropped"]
    assert (dropped["duplicate"], dropped["empty"], dropped["malformed"], dropped["contaminated"]) == (1, 1, 1, 1)
    assert dropped["over_limit"] + dropped["too_long"] == 3 and account["used"] == 5
    assert account["evals"] == {"bench": 1}
    assert not any("hawaii" in t.lower() for t in texts(rows))


def test_num_tokens_is_of_the_first_turn_as_the_verifier_reads_it(
    run: Step, verifier: Verifier, tmp_path: Path
) -> None:
    system = [{"role": "system", "content": "Be brief."}]
    said = [system + turns("What is the capital of France?", "And of Spain?"), turns("Why?", "Why not?")]
    cfg = PromptsConfig(sources={"mine": source(tmp_path / "m.jsonl", *said)}, max_turns=2, val_fraction=0)
    _, rows = run(cfg)
    tokenizer = AutoTokenizer.from_pretrained(verifier.path)
    for row in rows:
        text = tokenizer.apply_chat_template(row.messages[:-1], tokenize=False, add_generation_prompt=True)
        assert row.num_tokens == len(tokenizer(text, add_special_tokens=False).input_ids)
    assert sorted(len(r.messages) for r in rows) == [2, 3]


def test_max_turns_keeps_the_first_user_turns(run: Step, tmp_path: Path) -> None:
    talk = [*turns("one"), {"role": "assistant", "content": "ok"}, *turns("two", "three")]
    cfg = PromptsConfig(sources={"mine": source(tmp_path / "m.jsonl", talk)}, max_turns=2, val_fraction=0)
    _, rows = run(cfg)
    assert rows[0].messages == turns("one", "two")


def test_a_second_evaluation_turn_contaminates_though_it_is_not_played(run: Step, tmp_path: Path) -> None:
    evals = source(tmp_path / "e.jsonl", turns("Hello there", "Now start every sentence with the letter A please"))
    mine = source(
        tmp_path / "m.jsonl",
        "Kindly start every sentence with the letter A please.",
        "hello, THERE!",
        "Hello there, friend",
    )
    cfg = PromptsConfig(sources={"mine": mine}, evals={"bench": evals}, val_fraction=0)
    account, rows = run(cfg)
    assert account["dropped"]["contaminated"] == 2  # an n-gram of a long turn, and a short turn as a whole
    assert texts(rows) == {"Hello there, friend"}
    cfg.decontaminate_ngram = 0
    account, rows = run(cfg)
    assert (account["dropped"]["contaminated"], len(rows)) == (0, 3)


def test_a_duplicate_belongs_to_the_first_source(run: Step, tmp_path: Path) -> None:
    a, b = source(tmp_path / "a.jsonl", "Same", "Only a"), source(tmp_path / "b.jsonl", "same ", "Only b")
    account, rows = run(PromptsConfig(sources={"a": a, "b": b}))
    assert account["sources"] == {"a": 2, "b": 1} and account["dropped"]["duplicate"] == 1
    assert {r.id for r in rows} == {"a/0", "a/1", "b/1"}


def test_max_prompts_takes_every_source_in_proportion(run: Step, tmp_path: Path) -> None:
    sources = {
        "large": source(tmp_path / "l.jsonl", *numbered("l", 60)),
        "small": source(tmp_path / "s.jsonl", *numbered("s", 20)),
        "capped": source(tmp_path / "c.jsonl", *numbered("c", 90), limit=20),
    }
    account, _ = run(PromptsConfig(sources=sources, max_prompts=20))
    assert account["sources"] == {"large": 12, "small": 4, "capped": 4}
    assert account["dropped"]["over_limit"] == 70 + 80


def test_only_what_is_needed_is_tokenised(run: Step, tmp_path: Path) -> None:
    """too_long=error does not see prompts that max_prompts leaves out."""
    sources = {"mine": source(tmp_path / "m.jsonl", *numbered("short", 30), "word " * 500)}
    cfg = PromptsConfig(sources=sources, max_prompt_tokens=60, max_prompts=1, val_fraction=0)
    seen = 0
    for seed in range(3):
        cfg.seed = seed
        seen += len(run(cfg)[1])
    assert seen == 3


def test_too_long_is_an_error_or_dropped(run: Step, tmp_path: Path) -> None:
    cfg = PromptsConfig(sources={"mine": source(tmp_path / "m.jsonl", "a", "b", "word " * 500)}, max_prompt_tokens=60)
    with pytest.raises(ValueError, match=r"mine/2 .*prompts\.max_prompt_tokens=60.*prompts\.too_long=drop"):
        run(cfg)
    cfg.too_long = OnTooLong.drop
    account, rows = run(cfg)
    assert account["dropped"]["too_long"] == 1 and texts(rows) == {"a", "b"}


def test_split_is_by_conversation_and_seeded(run: Step, tmp_path: Path) -> None:
    sources = {"mine": source(tmp_path / "m.jsonl", *numbered("p", 40))}

    def val(**changes: Any) -> set[str]:
        return {r.id for r in run(PromptsConfig(sources=sources, **changes))[1] if r.split == "val"}

    assert len(val(val_fraction=0.25)) == 10
    assert len(val(val_fraction=0.001)) == 1
    assert len(val(val_fraction=0.999)) == 39
    assert val(val_fraction=0) == set()
    assert val(val_fraction=0.25) == val(val_fraction=0.25) != val(val_fraction=0.25, seed=1)


def test_same_config_same_bytes(run: Step, tmp_path: Path) -> None:
    sources = {
        "a": source(tmp_path / "a.jsonl", *numbered("a", 30)),
        "b": source(tmp_path / "b.jsonl", *numbered("b", 9)),
    }
    cfg = PromptsConfig(
        sources=sources, evals={"bench": source(tmp_path / "e.jsonl", *numbered("e", 9))}, max_prompts=25
    )
    assert run(cfg, tmp_path / "one") == run(cfg, tmp_path / "two")
    for name in ("prompts.parquet", "eval/bench.parquet"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_another_source_does_not_reorder_the_first(run: Step, tmp_path: Path) -> None:
    a, b = source(tmp_path / "a.jsonl", *numbered("a", 30)), source(tmp_path / "b.jsonl", *numbered("b", 30))
    alone = [r.id for r in run(PromptsConfig(sources={"a": a}))[1]]
    together = [r.id for r in run(PromptsConfig(sources={"b": b, "a": a}))[1] if r.source == "a"]
    assert alone == together != sorted(alone)


def test_evaluation_sets_are_shuffled_limited_and_their_long_prompts_counted(run: Step, tmp_path: Path) -> None:
    bench = source(tmp_path / "e.jsonl", *numbered("e", 20), "word " * 500, limit=21)
    cfg = PromptsConfig(
        sources={"a": source(tmp_path / "a.jsonl", "x", "y")}, evals={"bench": bench}, max_prompt_tokens=60
    )
    out = tmp_path / "out"
    account, _ = run(cfg)
    rows = read_prompts(out / "eval" / "bench.parquet")
    assert account["evals"] == {"bench": 20} and account["evals_dropped"] == {"bench": {"too_long": 1}}
    assert [r.sample for r in rows] == list(range(20)) and {r.split for r in rows} == {"eval"}
    assert [r.id for r in rows] != sorted((r.id for r in rows), key=lambda i: int(i.split("/")[1]))
    bench.limit = 4
    assert run(cfg)[0]["evals"]["bench"] <= 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sources": {}}, r"prompts\.sources is empty"),
        ({"val_fraction": 1.0}, r"prompts\.val_fraction"),
        ({"max_turns": 0}, r"prompts\.max_turns"),
        ({"max_prompts": 0}, r"prompts\.sources leave no prompt"),
        ({"max_prompts": 1}, r"one prompt, too few to split.*prompts\.val_fraction=0"),
        ({"max_prompt_tokens": 3, "too_long": OnTooLong.drop}, r"prompts\.sources leave no prompt.*'too_long': 2"),
    ],
)
def test_mistakes_name_the_key(run: Step, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    cfg = {"sources": {"mine": source(tmp_path / "m.jsonl", "a", "b")}} | changes
    with pytest.raises(ValueError, match=message):
        run(PromptsConfig(**cfg))
    assert not (tmp_path / "out" / "prompts.parquet").exists()


def test_a_limit_below_one_names_its_source(run: Step, tmp_path: Path) -> None:
    mine, bench = source(tmp_path / "m.jsonl", "a", "b"), source(tmp_path / "e.jsonl", "c", limit=-1)
    with pytest.raises(ValueError, match=r"prompts\.evals\.bench\.limit is -1"):
        run(PromptsConfig(sources={"mine": mine}, evals={"bench": bench}))


def test_an_evaluation_set_that_ends_up_empty_is_an_error(run: Step, tmp_path: Path) -> None:
    mine, bench = source(tmp_path / "m.jsonl", "a", "b"), source(tmp_path / "e.jsonl", "word " * 500)
    with pytest.raises(ValueError, match=r"prompts\.evals\.bench leaves no prompt.*'too_long': 1"):
        run(PromptsConfig(sources={"mine": mine}, evals={"bench": bench}, max_prompt_tokens=60))


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "prompts.parquet"
    row = PromptRow(0, "a/0", "a", "train", turns("x"), 3)
    write_prompts(file, [row])
    with pytest.raises(Exception, match="convert"):
        write_prompts(file, [PromptRow(0, "a/0", "a", "train", turns("x"), "three")])  # type: ignore[arg-type]
    assert read_prompts(file) == [row] and [f.name for f in tmp_path.iterdir()] == ["prompts.parquet"]
    assert SCHEMA.names == ["sample", "id", "source", "split", "messages", "num_tokens"]
