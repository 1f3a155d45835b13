"""The draft gate: the trained draft passes, and everything that a conversion may lose turns it red."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actors.contexts import Context, read_contexts, write_contexts
from actors.draft_model import load_draft
from actors.draft_parity import compare
from actors.draft_trace import DraftTrace, read_trace
from actors.predicted_acceptance import proposals
from tests.tiny_draft import edit_config, rewrite_tensors, write_tiny_draft
from workflows.draft_gate import check_proposals, check_states

K, PROMPT, LENGTH = 3, 8, 40


@pytest.fixture(scope="module")
def draft(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("draft") / "trained"
    write_tiny_draft(folder, tiny_llama)
    return folder


@pytest.fixture(scope="module")
def trace(draft: Path) -> DraftTrace:
    """As an engine that runs the draft would leave it: the verifier writes what the draft proposes, now and then."""
    model = load_draft(draft, attention="eager")
    states = np.random.default_rng(0).normal(size=(LENGTH, 3 * 128)).astype(np.float32)
    ids = torch.randint(3, 500, (LENGTH + 1,), generator=torch.Generator().manual_seed(0))
    proposed: dict[int, list[int]] = {}
    anchor = PROMPT - 1
    while anchor + K + 2 <= LENGTH:
        for step in range(K):
            found = proposals(model, row_of(states, ids, LENGTH), K)[step, anchor]
            ids[anchor + 2 + step] = found if len(proposed) % 4 > step else ids[anchor + 2 + step]
        proposed[anchor] = proposals(model, row_of(states, ids, LENGTH), K)[:, anchor].tolist()
        anchor += 1 + (len(proposed) - 1) % 4
    return DraftTrace(ids.tolist(), PROMPT, states, proposed)


def row_of(states: np.ndarray, ids: torch.Tensor, length: int) -> dict[str, torch.Tensor]:
    return {
        "hidden_states": torch.from_numpy(states[:length])[None],
        "input_ids": ids[None, 1 : length + 1],
        "document_ids": torch.zeros(1, length, dtype=torch.long),
        "position_ids": torch.arange(1, length + 1)[None],
    }


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_trained_draft_is_itself(draft: Path, trace: DraftTrace, dtype: str) -> None:
    found = compare(str(draft), [trace, trace], dtype)
    assert found.compared > 2 * len(trace.proposed) and found.equal == found.compared
    assert check_proposals(found, dtype) == {"proposals": found.compared, "equal": found.compared, "ties": 0}


def drop(flag: str) -> Callable[[Path], None]:
    return lambda folder: edit_config(folder, **{flag: False})


def swap_layers(folder: Path) -> None:
    def swap(tensors: dict[str, torch.Tensor]) -> None:
        first, second, third = tensors["fc.weight"].chunk(3, dim=1)
        tensors["fc.weight"] = torch.cat([second, first, third], dim=1).contiguous()

    rewrite_tensors(folder, swap)


def shift_map(folder: Path) -> None:
    rewrite_tensors(folder, lambda tensors: tensors["d2t"].add_(1))


LOST = {
    "norm_before_residual": drop("norm_before_residual"),
    "norm_before_fc": drop("norm_before_fc"),
    "norm_output": drop("norm_output"),
    "aux layers permuted": swap_layers,
    "d2t off by one": shift_map,
}


@pytest.mark.parametrize("what", LOST)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_a_conversion_loses_turns_the_gate_red(
    draft: Path, trace: DraftTrace, tiny_llama: Path, tmp_path: Path, what: str, dtype: str
) -> None:
    write_tiny_draft(tmp_path / "draft", tiny_llama)
    assert compare(str(tmp_path / "draft"), [trace], dtype).holds(dtype)
    LOST[what](tmp_path / "draft")
    with pytest.raises(RuntimeError, match="norm_before_residual, norm_before_fc, fc_norm, norm_output"):
        check_proposals(compare(str(tmp_path / "draft"), [trace], dtype), dtype)


def test_a_norm_of_each_layer_that_is_lost_turns_the_gate_red(tiny_llama: Path, tmp_path: Path) -> None:
    write_tiny_draft(tmp_path / "draft", tiny_llama, norm_before_fc=False, fc_norm=True)
    model = load_draft(tmp_path / "draft", attention="eager")
    generator = np.random.default_rng(1)
    states = generator.normal(size=(LENGTH, 3 * 128)).astype(np.float32)
    ids = torch.from_numpy(generator.integers(3, 500, LENGTH + 1))
    proposed = proposals(model, row_of(states, ids, LENGTH), K)
    trace = DraftTrace(ids.tolist(), PROMPT, states, {a: proposed[:, a].tolist() for a in range(PROMPT - 1, LENGTH)})
    assert compare(str(tmp_path / "draft"), [trace], "float32").holds("float32")
    edit_config(tmp_path / "draft", fc_norm=False)
    assert not compare(str(tmp_path / "draft"), [trace], "float32").holds("float32")


def test_nothing_is_compared_behind_a_token_that_the_verifier_did_not_write(draft: Path, trace: DraftTrace) -> None:
    anchor = min(a for a, tokens in trace.proposed.items() if tokens[0] != trace.token_ids[a + 2])
    garbled = {**trace.proposed, anchor: [trace.proposed[anchor][0], -1, -1]}
    assert compare(str(draft), [replace(trace, proposed=garbled)], "float32").holds("float32")
    garbled[anchor] = [-1, *garbled[anchor][1:]]
    found = compare(str(draft), [replace(trace, proposed=garbled)], "float32")
    assert not found.holds("float32") and f"after token {anchor + 1}, draft token 1: -1" in found.examples[0]


def context(trace: DraftTrace) -> Context:
    bits = torch.from_numpy(trace.states[:PROMPT]).bfloat16().view(torch.uint16).numpy()
    return Context(7, np.array(trace.token_ids[:PROMPT], np.int32), bits.reshape(PROMPT, 3, 128))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_draft_reads_the_states_that_were_trained_on(trace: DraftTrace, dtype: str) -> None:
    assert 0 < check_states([context(trace)], [trace], [1, 2, 3], dtype) < 2**-7


def changed(trace: DraftTrace, change: Any) -> DraftTrace:
    return replace(trace, states=change(trace.states.reshape(-1, 3, 128)).reshape(len(trace.states), -1))


def test_layers_in_another_order_are_named(trace: DraftTrace) -> None:
    permuted = changed(trace, lambda states: states[:, [2, 0, 1]])
    with pytest.raises(RuntimeError, match=r"sample 7: .*another order, \[3, 1, 2\] where training has \[1, 2, 3\]"):
        check_states([context(trace)], [permuted], [1, 2, 3], "bfloat16")


def test_other_layers_are_refused(trace: DraftTrace) -> None:
    noise = np.random.default_rng(5).normal(size=(LENGTH, 128)).astype(np.float32)

    def other(states: np.ndarray) -> np.ndarray:
        copy = states.copy()
        copy[:, 1] = noise
        return copy

    with pytest.raises(RuntimeError, match=r"takes ids \[1, 2, 3\] for other layers.*vllm#50170"):
        check_states([context(trace)], [changed(trace, other)], [1, 2, 3], "bfloat16")


def test_another_number_of_layers_is_refused(trace: DraftTrace) -> None:
    two = changed(trace, lambda states: states[:, :2])
    with pytest.raises(RuntimeError, match=r"reads 2 layers in the engine, and was trained on 3"):
        check_states([context(trace)], [two], [1, 2, 3], "bfloat16")


def test_contexts_survive_their_file(trace: DraftTrace, tmp_path: Path) -> None:
    one, other = context(trace), replace(context(trace), sample=12)
    write_contexts(tmp_path / "contexts.npz", [other, one])
    found = read_contexts(tmp_path / "contexts.npz")
    assert [c.sample for c in found] == [7, 12]
    assert found[0].token_ids.tolist() == one.token_ids.tolist() and np.array_equal(found[1].states, one.states)


def test_states_of_rejected_tokens_give_way_to_those_of_the_tokens_that_stand_there(tmp_path: Path) -> None:
    """A prompt of 3 tokens; 2 draft tokens a step, of which the first step's second is rejected."""

    def step(positions: list[int], value: float, rejected: int, proposed: list[int]) -> dict[str, np.ndarray]:
        states = np.array([[value + p] for p in positions], np.float32)
        return {
            "positions": np.array(positions),
            "states": states,
            "rejected": np.array([rejected]),
            "proposed": np.array(proposed),
        }

    steps = [step([0, 1, 2], 0, 0, [50, 51]), step([3, 4, 5], 100, 1, [60, 61]), step([5, 6, 7], 200, 0, [70, 71])]
    np.savez(
        tmp_path / "trace.npz", **{f"{n}/{key}": value for n, one in enumerate(steps) for key, value in one.items()}
    )
    ids = [1, 2, 3, 4, 50, 5, 60, 61, 6]
    trace = read_trace(tmp_path / "trace.npz", ids, 3)
    assert trace.states[:, 0].tolist() == [0, 1, 2, 103, 104, 205, 206, 207]
    assert trace.proposed == {2: [50, 51], 4: [60, 61], 7: [70, 71]}
