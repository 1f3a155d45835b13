"""Step benchmark, against fake engines: every number must follow from what the engine counted."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.acceptance import Acceptance, difference
from actors.draft_flags import effective_flags
from actors.draft_formats import write_flat
from actors.engine import Completion, DraftSpec, EngineSpec, Sampling
from actors.verifier import read_verifier
from conf.schema import BenchmarkConfig, EngineConfig, EngineKind, LayerIds, Naming
from tests.local_engine import LocalEngines, LocalHandle
from tests.tiny_draft import write_published_draft, write_tiny_draft
from workflows.draft_source import PublishedDraft
from workflows.held_out import HeldOut
from workflows.prompt_table import PromptRow, write_prompts
from workflows.steps.benchmark import benchmark

CFG = BenchmarkConfig(
    num_speculative_tokens=2, max_new_tokens=24, prompts_per_set=4, concurrency=3, speed_prompts=3, speed_new_tokens=16
)
SETS = {"code": 6, "maths": 2}  # prompts each


@pytest.fixture
def inputs(tiny_llama: Path, tmp_path: Path) -> Path:
    """Folder with convert/flat, prompts/eval and an empty out."""
    write_tiny_draft(tmp_path / "draft", tiny_llama)
    write_flat(tmp_path / "draft", read_verifier(tiny_llama), tmp_path / "convert" / "flat", Naming.layers, 2)
    (tmp_path / "prompts" / "eval").mkdir(parents=True)
    for name, count in SETS.items():
        write_set(tmp_path, name, count)
    (tmp_path / "out").mkdir()
    return tmp_path


def write_set(folder: Path, name: str, count: int) -> None:
    rows = [PromptRow(i, f"{name}/{i}", name, "eval", conversation(name, i), 20) for i in range(count)]
    write_prompts(folder / "prompts" / "eval" / f"{name}.parquet", rows)


def conversation(name: str, i: int) -> list[dict[str, str]]:
    """Two user turns, of which only the first is asked."""
    return [{"role": "user", "content": f"{name} question {i}"}, {"role": "user", "content": "And then?"}]


def run(
    folder: Path,
    verifier: Path,
    engines: LocalEngines,
    cfg: BenchmarkConfig = CFG,
    reference: PublishedDraft | None = None,
    expected: HeldOut | str = "not asked for",
    **engine: Any,
) -> dict[str, Any]:
    return benchmark(
        cfg,
        EngineConfig(kind=EngineKind.fake, **engine),
        read_verifier(verifier),
        False,
        folder / "convert",
        reference,
        folder / "prompts",
        expected,
        engines,
        folder / "out",
    )


class Recording(LocalHandle):
    """Keeps what each engine was asked: (drafting, prompts, sampling, concurrency)."""

    seen: list[tuple[bool, list[str], Sampling, int | None]] = []

    def generate(self, prompts: list[list[int]], sampling: Sampling, **more: Any) -> list[Completion]:
        texts = [bytes(i - 3 for i in ids).decode() for ids in prompts]
        Recording.seen.append((self.spec.draft is not None, texts, sampling, more["concurrency"]))
        return super().generate(prompts, sampling, **more)


def test_acceptance_of_a_set_is_that_of_its_prompts_alone(inputs: Path, tiny_llama: Path) -> None:
    result = run(inputs, tiny_llama, LocalEngines())
    assert result["sets"].keys() == SETS.keys()
    draft = DraftSpec(str(inputs / "convert" / "flat"), 2)
    for name, count in {"code": 4, "maths": 2}.items():
        alone = LocalHandle(EngineSpec(str(tiny_llama), EngineConfig(kind=EngineKind.fake), draft=draft))
        before = alone.counters()
        prompts = alone.render([conversation(name, i)[:1] for i in range(count)])
        completions = alone.generate(prompts, Sampling(24))
        wanted = Acceptance.of(difference(before, alone.counters()))
        found = result["sets"][name]
        assert found.pop("seconds") > 0
        assert found == {
            "prompts": count,
            "output_tokens": sum(len(c.output_ids) for c in completions),
            "acceptance_length": wanted.acceptance_length,
            "acceptance_per_position": wanted.per_position,
            "drafts": wanted.drafts,
            "accepted": wanted.accepted,
            "draft_tokens": wanted.draft_tokens,
        }
        assert 1 < wanted.acceptance_length < 3


def test_what_is_asked_of_which_engine(inputs: Path, tiny_llama: Path) -> None:
    Recording.seen.clear()
    engines = LocalEngines(Recording)
    run(inputs, tiny_llama, engines)
    flat = DraftSpec(str(inputs / "convert" / "flat"), 2)
    assert [spec.draft for _, spec in engines.started] == [flat, None]
    assert [spec.draft for _, spec in engines.prepared] == [None]  # starts while acceptance is measured

    def asked(*names: str) -> list[str]:
        return [f"<user>{name.replace('-', ' question ')}\n<assistant>" for name in names]

    speed = asked("code-0", "maths-0", "code-1")
    short, long = Sampling(16), Sampling(24)
    assert Recording.seen == [
        (True, speed[:1], short, 1),
        (True, speed, short, 1),
        (True, asked("code-0", "code-1", "code-2", "code-3"), long, 3),
        (True, asked("maths-0", "maths-1"), long, 3),
        (False, speed[:1], short, 1),
        (False, speed, short, 1),
    ]


def test_speed_follows_from_the_passes_of_the_verifier(inputs: Path, tiny_llama: Path) -> None:
    speed = run(inputs, tiny_llama, LocalEngines(), extra={"seconds_per_token": 0.005})["speed"]
    assert speed["prompts"] == 3
    assert speed["tokens_per_s_plain"] < 1 / 0.005
    assert speed["speedup"] == speed["tokens_per_s_draft"] / speed["tokens_per_s_plain"] > 1.05
    assert speed["greedy_equal"] == 1


def test_result_is_written_as_returned(inputs: Path, tiny_llama: Path) -> None:
    result = run(inputs, tiny_llama, LocalEngines())
    assert result["num_speculative_tokens"] == 2
    assert json.loads((inputs / "out" / "benchmark.json").read_text()) == result
    assert [file.name for file in (inputs / "out").iterdir()] == ["benchmark.json"]


def test_sequences_that_a_draft_changed_are_reported_as_a_share(inputs: Path, tiny_llama: Path) -> None:
    class NearTie(LocalHandle):
        """With a draft, the second of several answers takes another token."""

        def generate(self, prompts: list[list[int]], sampling: Sampling, **more: Any) -> list[Completion]:
            completions = super().generate(prompts, sampling, **more)
            if self.spec.draft and len(completions) == 3:
                completions[1].output_ids[0] += 1
            return completions

    assert run(inputs, tiny_llama, LocalEngines(NearTie))["speed"]["greedy_equal"] == 2 / 3


def failing(fault: str) -> type[LocalHandle]:
    class Failing(LocalHandle):
        """Has one fault in the acceptance measurement."""

        def generate(self, prompts: list[list[int]], sampling: Sampling, **more: Any) -> list[Completion]:
            completions = super().generate(prompts, sampling, **more)
            if sampling.max_new_tokens != CFG.max_new_tokens:
                return completions
            if fault == "lost":
                return completions[:-1]
            if fault == "empty":
                return [*completions[:-1], replace(completions[-1], output_ids=[])]
            if fault == "other prompt":
                return completions[::-1]
            raise RuntimeError("request 3 failed")

    return Failing


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("lost", "set code: 3 completions of 4 prompts"),
        ("empty", "prompt 3 was answered with 0 tokens"),
        ("other prompt", "read other tokens than prompt 0"),
        ("raised", "request 3 failed"),
    ],
)
def test_a_failed_request_fails_the_step_and_leaves_no_result(
    fault: str, message: str, inputs: Path, tiny_llama: Path
) -> None:
    with pytest.raises(RuntimeError, match=message):
        run(inputs, tiny_llama, LocalEngines(failing(fault)))
    assert not list((inputs / "out").iterdir())


def test_a_draft_that_is_not_used_is_a_failure_and_not_acceptance_one(inputs: Path, tiny_llama: Path) -> None:
    class Idle(LocalHandle):
        """Never uses its draft."""

        def counters(self) -> Any:
            return type(super().counters())()

    with pytest.raises(RuntimeError, match="set code: the engine drafted nothing"):
        run(inputs, tiny_llama, LocalEngines(Idle))


def test_a_context_that_would_stop_the_draft_is_refused(inputs: Path, tiny_llama: Path) -> None:
    longest = len("<user>maths question 0\n<assistant>") + 24 + 2
    run(inputs, tiny_llama, LocalEngines(), max_model_len=longest)
    with pytest.raises(ValueError, match=f"engine.max_model_len: set maths needs {longest} tokens"):
        run(inputs, tiny_llama, LocalEngines(), max_model_len=longest - 1)


def test_nothing_to_measure_on_is_an_error(inputs: Path, tiny_llama: Path) -> None:
    write_set(inputs, "empty", 0)
    with pytest.raises(ValueError, match=r"prompts.evals: no prompts in \['empty'\]"):
        run(inputs, tiny_llama, LocalEngines())
    for file in (inputs / "prompts" / "eval").iterdir():
        file.unlink()
    with pytest.raises(ValueError, match="prompts.evals: no evaluation set"):
        run(inputs, tiny_llama, LocalEngines())


@pytest.fixture
def reference(inputs: Path, tiny_llama: Path) -> PublishedDraft:
    """A published draft, as its authors left it: its ids are SGLang's."""
    write_published_draft(inputs / "theirs", tiny_llama)
    return PublishedDraft(inputs / "theirs" / "published", "a fingerprint", LayerIds.sglang)


def test_a_reference_is_measured_on_the_same_prompts_after_ours(
    inputs: Path, tiny_llama: Path, reference: PublishedDraft
) -> None:
    """The next engine starts while acceptance is measured, never while speed is."""
    Recording.seen.clear()
    engines = LocalEngines(Recording)
    run(inputs, tiny_llama, engines, reference=reference)
    ours, theirs = DraftSpec(str(inputs / "convert" / "flat"), 2), DraftSpec(str(inputs / "out" / "reference"), 2)
    assert [spec.draft for _, spec in engines.started] == [ours, theirs, None]
    assert [spec.draft for _, spec in engines.prepared] == [theirs, None]
    with_ours, with_theirs, plain = Recording.seen[:4], Recording.seen[4:8], Recording.seen[8:]
    assert with_theirs == with_ours and all(drafting for drafting, *_ in with_ours)
    assert [asked[1:] for asked in plain] == [asked[1:] for asked in with_ours[:2]]
    assert not any(drafting for drafting, *_ in plain)
    assert effective_flags(inputs / "out" / "reference")["aux_layers"] == [2, 3, 4]  # its config.json has 1, 2, 3


def test_numbers_of_a_reference_are_its_own_and_ours_are_as_without_it(
    inputs: Path, tiny_llama: Path, reference: PublishedDraft
) -> None:
    slow = {"extra": {"seconds_per_token": 0.005}}
    result = run(inputs, tiny_llama, LocalEngines(), reference=reference, **slow)
    assert json.loads((inputs / "out" / "benchmark.json").read_text()) == result
    found = result["reference"]
    assert found["path"] == str(reference.folder)
    (inputs / "swapped" / "convert").mkdir(parents=True)
    for source, link in ((inputs / "out" / "reference", "convert/flat"), (inputs / "prompts", "prompts")):
        (inputs / "swapped" / link).symlink_to(source)
    (inputs / "swapped" / "out").mkdir()
    alone, without = run(inputs / "swapped", tiny_llama, LocalEngines()), run(inputs, tiny_llama, LocalEngines())
    for name in SETS:
        for one, other in ((found["sets"], alone["sets"]), (result["sets"], without["sets"])):
            assert one[name] | {"seconds": 0} == other[name] | {"seconds": 0}
    assert found["sets"]["code"]["accepted"] != result["sets"]["code"]["accepted"]
    assert found["speed"]["tokens_per_s_plain"] == result["speed"]["tokens_per_s_plain"]
    assert found["speed"]["speedup"] == found["speed"]["tokens_per_s_draft"] / found["speed"]["tokens_per_s_plain"] > 1
    assert found["speed"]["tokens_per_s_draft"] != result["speed"]["tokens_per_s_draft"]
    assert "reference" not in without


def test_a_fault_of_the_reference_says_whose_it_is(inputs: Path, tiny_llama: Path, reference: PublishedDraft) -> None:
    class Idle(LocalHandle):
        """Never uses the reference."""

        def counters(self) -> Any:
            counters = super().counters()
            return type(counters)() if self.spec.draft and self.spec.draft.path.endswith("reference") else counters

    with pytest.raises(RuntimeError, match=r"set code \(reference\): the engine drafted nothing"):
        run(inputs, tiny_llama, LocalEngines(Idle), reference=reference)
    assert not (inputs / "out" / "benchmark.json").exists()
