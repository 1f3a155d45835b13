"""A published draft's config.json as vLLM must find it (pure).

The GPU runner looks for the aux layers on top only, not inside eagle_config where SpecForge's drafts have them, and
quietly takes the verifier's default layers instead. The default of norm_before_residual differs between vLLM's two
loaders, and what an id means between tools. What is written out here computes the draft that was meant, in every
runner.
"""

import json
from pathlib import Path
from typing import Any

from actors.commit import whole_folder
from actors.draft_flags import flags_of, is_speculators
from actors.draft_shapes import WEIGHTS
from actors.layer_ids import default_layers, from_tool
from actors.verifier import Verifier, read_config
from conf.schema import LayerIds

LAYERS = "eagle_aux_hidden_state_layer_ids"
NORM_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


def repaired(config: dict[str, Any], where: str, verifier: Verifier, ids: LayerIds = LayerIds.vllm) -> dict[str, Any]:
    """The parsed config.json of either format with aux layers, their number and the norm flags written out.

    `ids`: whose convention its layer ids follow; vLLM's are written. ValueError when the verifier has no such layers.
    """
    if config.get("target_hidden_size") is None:  # vLLM multiplies with whatever it finds in a flat config
        config = {key: value for key, value in config.items() if key != "target_hidden_size"}
    flags = flags_of(config, where)
    layers = default_layers(verifier.num_layers)
    if flags["aux_layers"]:
        layers = from_tool(flags["aux_layers"], ids, verifier.num_layers)
    count = {"num_aux_hidden_states": len(layers)}  # which vLLM does not count on top, and else takes for 3
    written = {LAYERS: layers, **{key: flags[key] for key in NORM_FLAGS}}
    if is_speculators(config):
        return config | written | {"transformer_layer_config": config["transformer_layer_config"] | count}
    return config | written | count


def write_repaired(draft: Path, verifier: Verifier, ids: LayerIds, out: Path) -> None:
    """The new folder `out`: the repaired config.json of `draft`, and its weights by a link."""
    config = repaired(read_config(draft), f"{draft}/config.json", verifier, ids)
    with whole_folder(out) as folder:
        (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        (folder / WEIGHTS).symlink_to((draft / WEIGHTS).resolve())
