"""What tools mean by a layer id, and the same layers in Eyrie's ids (pure).

Eyrie's ids are vLLM's: id k is the residual stream after k layers, 0 the embedding, and the number of layers n is the
last state, before the final norm. Where an id is read from or written for another tool, it is converted by name here
and nowhere else. The same numbers in two tools are different features: a draft that reads those of a neighbouring layer
loads, runs, and is merely worse (TorchSpec#87, vllm#48124).

| tool | id v is the state | without ids | where |
|---|---|---|---|
| vLLM 0.32 | after v layers | 2, n // 2, n - 3 | models/deepseek_v2.py, llama.py; the runners pass ids as they are |
| speculators 0.9 | after v layers | 2, n // 2, n - 3 | models/utils.py: resolve_target_layer_ids; n is allowed |
| SGLang | after v + 1 layers | 2, n // 2, n - 3, not 1 more | set_eagle3_layers_to_capture: val + 1 for ids only |
| SpecForge | after v + 1 layers | 1, n // 2 - 1, n - 4 | hands them to SGLang |
| TorchSpec | after v + 1 layers | 1, n // 2 - 1, n - 4 | adds 1 for vLLM; in exports for kimi_k2 only |
| ModelOpt | after v + 1 layers | 1, n // 2 - 1, n - 4 | hooks on the outputs of layers |

So all of them read the same three states when a draft names none.
"""

from collections.abc import Sequence

from conf.schema import LayerIds

LAYERS_BEFORE = {  # id 0 of the tool is the state after so many layers
    LayerIds.vllm: 0,
    LayerIds.speculators: 0,
    LayerIds.sglang: 1,
    LayerIds.specforge: 1,
    LayerIds.torchspec: 1,
    LayerIds.modelopt: 1,
}


def from_tool(ids: Sequence[int], tool: LayerIds, num_layers: int) -> list[int]:
    """Eyrie's ids of the states that `tool` calls `ids`. ValueError for one that a verifier of that depth lacks."""
    layers = [one + LAYERS_BEFORE[tool] for one in ids]
    if wrong := [one for one, k in zip(ids, layers, strict=True) if not 0 <= k <= num_layers]:
        raise ValueError(
            f"layer ids {wrong}, read as {tool.value}'s, are no states of a verifier of {num_layers} layers: its first "
            f"is {-LAYERS_BEFORE[tool]} and its last {num_layers - LAYERS_BEFORE[tool]}. Use a draft of this verifier, "
            "or say whose ids they are (train.init_layer_ids, benchmark.reference_layer_ids)."
        )
    return layers


def for_tool(layers: Sequence[int], tool: LayerIds) -> list[int]:
    """What `tool` calls the states that are `layers` in Eyrie."""
    return [k - LAYERS_BEFORE[tool] for k in layers]


def default_layers(num_layers: int) -> list[int]:
    """Eyrie's ids of the states that every tool above takes for a draft that names none."""
    return [2, num_layers // 2, num_layers - 3]
