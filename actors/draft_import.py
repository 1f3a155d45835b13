"""A draft that somebody else trained: whether its files are whole, of this verifier, and of the configured shape.

Only config.json, the header of model.safetensors and the vocabulary map are read, so that all of it is known before
anything starts. `key` is the configuration key that named the draft, for messages.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from actors.draft_flags import configured_flags, flag_differences, flags_of
from actors.draft_repair import repaired
from actors.draft_shapes import WEIGHTS, compare, differences, shapes_of, table
from actors.verifier import Verifier, read_config
from conf.schema import DraftConfig, LayerIds

PICKLED = (".bin", ".pt", ".pth")
CONVERT = 'python -c "import torch, safetensors.torch as s; s.save_file(torch.load({!r}, weights_only=True), {!r})"'
SHOWN = 20  # tensors in a message: somebody may have given a whole language model
# flags that are keys of the configuration under the same name
DRAFT_KEYS = (
    *("aux_layers", "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "draft_vocab_size"),
    *("num_layers", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "mla"),
    *("attention_bias", "rms_norm_eps"),
)


def read_draft(key: str, folder: Path, verifier: Verifier, ids: LayerIds = LayerIds.vllm) -> dict[str, Any]:
    """The flags of the draft in `folder`, as it was meant. ValueError unless it is a whole draft of this verifier.

    `ids`: whose convention the layer ids in its config.json follow; those of the flags are vLLM's.
    """
    _check_files(key, folder)
    where = f"{folder}/config.json"
    try:
        flags = flags_of(repaired(read_config(folder), where, verifier, ids), where)
        rows = differences(compare(folder, shapes_of(flags)))
    except KeyError as error:
        raise ValueError(f"{key}: {where} has no key {error}; give the folder of an EAGLE-3 draft.") from error
    except (TypeError, AttributeError) as error:
        raise ValueError(f"{key}: {where} is of no draft that is known here ({error}); give another.") from error
    except ValueError as error:
        raise ValueError(f"{key}: {str(error).removeprefix('verifier.source: ')}") from error
    _check_verifier(key, folder, flags, verifier)
    if rows:
        more = f"\nand {len(rows) - SHOWN} more" if len(rows) > SHOWN else ""
        raise ValueError(
            f"{key}: the tensors of {folder} are not those of a draft with its config.json:\n{table(rows[:SHOWN])}"
            f"{more}\nDownload it again; if it is like that where it comes from, use another draft."
        )
    return flags


def check_start(key: str, folder: Path, draft: DraftConfig, verifier: Verifier, ids: LayerIds = LayerIds.vllm) -> None:
    """ValueError unless training with the configured draft can go on from the one in `folder`."""
    flags = read_draft(key, folder, verifier, ids)
    if flags["sliding_layers"]:
        raise ValueError(
            f"{key}: {flags['sliding_layers']} layers of {folder} have a sliding window, and drafts are trained with "
            "full attention here. Use a draft without one."
        )
    if changes := _changes(flags, configured_flags(draft, verifier)):
        raise ValueError(f"{key}: {folder} is another draft than is configured. To go on from it, set\n{changes}")
    assert not flag_differences(flags, configured_flags(draft, verifier)), "a flag that no draft.* key sets"
    target_ids(key, folder, verifier.vocab_size)


def target_ids(key: str, folder: Path, vocab_size: int) -> torch.Tensor | None:
    """The verifier's id of every draft id, int64 [Vd], from d2t; None for the full vocabulary."""
    with safe_open(folder / WEIGHTS, framework="pt") as file:
        maps = {name: file.get_tensor(name) for name in ("d2t", "t2d") if name in file.keys()}  # noqa: SIM118
    if "d2t" not in maps:
        return None
    targets = torch.arange(len(maps["d2t"])) + maps["d2t"].long()
    falls = (targets[1:] <= targets[:-1]).nonzero().flatten()
    if len(falls):
        i = int(falls[0])
        raise ValueError(
            f"{key}: d2t of {folder} is not ascending (draft ids {i} and {i + 1} are tokens {int(targets[i])} and "
            f"{int(targets[i + 1])}), and speculators picks the verifier's rows in the order of ids. Sort d2t and the "
            "rows of lm_head.weight by token, or use another draft."
        )
    if targets[0] < 0 or targets[-1] >= vocab_size:
        raise ValueError(
            f"{key}: d2t of {folder} names tokens {int(targets[0])} to {int(targets[-1])}, and the verifier has "
            f"{vocab_size}; use a draft whose d2t holds target id minus draft id."
        )
    if "t2d" in maps and not torch.equal(maps["t2d"].bool().nonzero().flatten(), targets):
        raise ValueError(f"{key}: d2t and t2d of {folder} name different tokens; use another draft, or remove its t2d.")
    return targets


def _check_files(key: str, folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise ValueError(f"{key}: {folder} has no config.json. Give the folder of an EAGLE-3 draft, or its hub id.")
    if (folder / WEIGHTS).is_file():
        return
    pickled = sorted(file.name for file in folder.iterdir() if file.suffix in PICKLED)
    others = sorted(file.name for file in folder.glob("*.safetensors"))
    if pickled:
        advice = f"Convert it: {CONVERT.format(str(folder / pickled[0]), str(folder / WEIGHTS))}"
    elif others:
        advice = f"Merge its files into one {WEIGHTS}."
    else:
        advice = f"Download the draft again; if it is published as pytorch_model.bin only, convert that to {WEIGHTS}."
    raise ValueError(f"{key}: {folder} has no {WEIGHTS}, but {', '.join(pickled + others) or 'no weights'}. {advice}")


def _check_verifier(key: str, folder: Path, flags: dict[str, Any], verifier: Verifier) -> None:
    sizes = {"hidden size": ("hidden_size", verifier.hidden_size), "vocabulary": ("vocab_size", verifier.vocab_size)}
    sizes["hidden size of its verifier"] = ("target_hidden_size", verifier.hidden_size)
    for what, (flag, wanted) in sizes.items():
        if flags[flag] != wanted:
            raise ValueError(
                f"{key}: {folder} has {what} {flags[flag]}, the verifier's {wanted}; use a draft of this verifier."
            )


def _changes(flags: dict[str, Any], wanted: dict[str, Any]) -> str:
    """A line for each key that must change, as it is written on the command line."""
    found = {key: (flags[key], wanted[key]) for key in DRAFT_KEYS}
    found["rope_theta"] = (flags["rope"]["rope_theta"], wanted["rope"]["rope_theta"])
    found["rope_scaling"] = (_scaling(flags["rope"]), _scaling(wanted["rope"]))
    return "\n".join(
        f"  {_quoted(f'draft.{key}={_hydra(file)}')}  (now {_hydra(configured)})"
        for key, (file, configured) in found.items()
        if file != configured
    )


def _scaling(rope: dict[str, Any]) -> dict[str, Any] | None:
    scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
    return None if scaling == {"rope_type": "default"} else scaling


def _hydra(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_hydra(item)}" for key, item in value.items()) + "}"
    return f"[{','.join(map(str, value))}]" if isinstance(value, list) else str(value)


def _quoted(override: str) -> str:
    return f"'{override}'" if "{" in override or "[" in override else override
