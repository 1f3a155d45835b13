"""Layer ids of other tools: the states that each convention picks out of a real forward are those of our ids."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from speculators.models.utils import resolve_target_layer_ids
from transformers import AutoModelForCausalLM

from actors.hf_forward import HfForward
from actors.layer_ids import LAYERS_BEFORE, default_layers, for_tool, from_tool
from conf.schema import LayerIds
from tests.tiny import write_tiny_llama

IDS = [1, 7, 20, 32, 45]
DEPTH = 8


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("deep"), layers=DEPTH)


def entering(model: Any, at: list[int]) -> dict[int, torch.Tensor]:
    """As vLLM and speculators capture: what enters layer id, and behind the last one what enters the final norm."""
    places = {k: model.model.layers[k] if k < DEPTH else model.model.norm for k in at}
    return seen(model, {k: place.register_forward_pre_hook for k, place in places.items()}, lambda args: args[1][0])


def leaving(model: Any, at: list[int]) -> dict[int, torch.Tensor]:
    """As SGLang (id + 1 of what enters), TorchSpec and ModelOpt (hooks) capture: what leaves layer id."""
    return seen(model, {v: model.model.layers[v].register_forward_hook for v in at}, lambda args: args[2])


def seen(
    model: Any, register: dict[int, Callable[..., Any]], pick: Callable[[Any], torch.Tensor]
) -> dict[int, torch.Tensor]:
    found: dict[int, torch.Tensor] = {}
    hooks = [one(lambda *args, k=k: found.__setitem__(k, pick(args))) for k, one in register.items()]
    with torch.no_grad():
        model(torch.tensor([IDS]))
    for hook in hooks:
        hook.remove()
    return found


CONVENTIONS = [
    (LayerIds.vllm, entering, [0, 2, 3, DEPTH]),
    (LayerIds.speculators, entering, [0, 2, 3, DEPTH]),
    (LayerIds.sglang, leaving, [0, 1, 3, DEPTH - 1]),
    (LayerIds.torchspec, leaving, [0, 1, 3, DEPTH - 1]),
]


@pytest.mark.parametrize(("tool", "capture", "ids"), CONVENTIONS, ids=lambda value: getattr(value, "value", ""))
def test_states_and_conversions_agree(
    tool: LayerIds, capture: Callable[..., dict[int, torch.Tensor]], ids: list[int], deep: Path
) -> None:
    """Theirs, captured their way, bit for bit ours at the converted ids; and no other layer has the same state."""
    model = AutoModelForCausalLM.from_pretrained(deep, dtype=torch.float32).eval()
    theirs = capture(model, ids)
    ours = HfForward(str(deep), trust_remote_code=False).states(IDS, tuple(range(DEPTH + 1)))
    for one, layer in zip(ids, from_tool(ids, tool, DEPTH), strict=True):
        state = theirs[one].reshape(len(IDS), -1).bfloat16().contiguous().view(torch.uint16).numpy()
        same = [k for k in range(DEPTH + 1) if (ours[:, k] == state).all()]
        assert same == [layer]


@pytest.mark.parametrize("tool", LayerIds)
def test_there_and_back_and_the_names_of_kimis_states(tool: LayerIds) -> None:
    assert from_tool(for_tool([2, 30, 58, 61], tool), tool, 61) == [2, 30, 58, 61]
    assert for_tool([2, 30, 58], tool) == ([2, 30, 58], [1, 29, 57])[LAYERS_BEFORE[tool]]


def test_our_defaults_are_those_that_speculators_takes(deep: Path) -> None:
    with pytest.warns(UserWarning):
        assert resolve_target_layer_ids(None, str(deep)) == default_layers(DEPTH)


@pytest.mark.parametrize(("tool", "ids"), [(LayerIds.vllm, [2, 7]), (LayerIds.sglang, [2, 6]), (LayerIds.sglang, [-2])])
def test_an_id_that_is_no_state_is_refused_with_what_to_do(tool: LayerIds, ids: list[int]) -> None:
    with pytest.raises(ValueError, match=rf"\[{ids[-1]}\], read as {tool.value}'s.* say whose ids they are"):
        from_tool(ids, tool, 6)
