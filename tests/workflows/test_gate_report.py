"""The gates of an extraction, summed up: the worst decides, and the report shows what is learnt from."""

from pathlib import Path

import pytest

from workflows.gate_report import sentences, shown_rows, shown_samples, summary
from workflows.prompt_table import PromptRow, write_prompts


def gate(error: float, of_bound: float, drift: list[float]) -> dict:
    agreement = {"entries": 9, "mean_error": error, "largest_error": 2 * error, "of_bound": of_bound, "typical": 1.0}
    return {
        "samples": [{"sample": 1, "agreement": agreement, "drift": drift, "far": [0.0, 0.0], "from_hf": None}],
        "shown": [],
        "seconds": 0.25,
    }


def test_the_worst_of_all_shards_is_reported_and_the_median_drift() -> None:
    gates = [gate(0.1, 0.2, [0.1, 0.5]), gate(0.3, 0.9, [0.2, 0.1]), gate(0.2, 0.1, [0.9, 0.3])]
    account = summary(gates, [2, 4], 4)
    assert (account["shards"], account["of_shards"], account["samples"], account["seconds"]) == (3, 4, 3, 0.8)
    assert account["mean_error_nats"] == pytest.approx(0.2) and account["largest_error_nats"] == 0.6
    assert account["largest_of_bound"] == 0.9
    assert account["drift"] == {"2": 0.2, "4": 0.3} and "from_hf" not in account
    first, second = sentences(account)
    assert "3 samples of 3 of 4 shards" in first and "at most 0.90 of what rounding allows" in first
    assert second.endswith("layer 2 0.2, layer 4 0.3")


def test_gates_that_were_off_say_nothing() -> None:
    account = summary([], [2, 4], 4)
    assert account["samples"] == 0 and list(sentences(account)) == [] and shown_rows(account) == []


def test_the_first_conversations_of_each_source_are_shown(tmp_path: Path) -> None:
    sources = ["a", "a", "b", "a", "b", "a"]
    rows = [PromptRow(i, str(i), s, "train", [{"role": "user", "content": "?"}], 1) for i, s in enumerate(sources)]
    write_prompts(tmp_path / "prompts.parquet", rows)
    assert shown_samples(tmp_path / "prompts.parquet", 2) == (0, 1, 2, 4)
    assert shown_samples(tmp_path / "prompts.parquet", 0) == ()


def test_an_answer_is_a_row_with_its_special_characters_visible() -> None:
    turns = [{"before": "a\n", "first": " b", "last": "<|im_end|>", "tokens": 3}]
    account = summary([{"samples": [], "seconds": 0, "shown": [{"sample": 7, "source": "s", "turns": turns}]}], [], 1)
    assert shown_rows(account) == [["s", "7", "1", r"'a\n'", "' b'", "'<|im_end|>'", "3"]]
