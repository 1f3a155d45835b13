"""The tensors of an EAGLE-3 draft: names and shapes, against the configuration or a published reference (pure).

vLLM checks no draft for completeness: a tensor that the file lacks keeps whatever the memory held. So this does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.draft_flags import configured_flags
from actors.verifier import Verifier, safetensors_header
from conf.schema import DraftConfig

WEIGHTS = "model.safetensors"
# vLLM shares the verifier's embedding when the file has none, and reads d2t only
OPTIONAL = frozenset({"embed_tokens.weight", "t2d"})


@dataclass(frozen=True)
class Row:
    """One tensor of a comparison; shapes, or None where there is no such tensor."""

    name: str
    ours: list[int] | None
    reference: list[int] | None
    verdict: str  # equal, differs, missing, unexpected, left out


def normalised(name: str) -> str:
    """A tensor's name in speculators' convention."""
    return name.replace("midlayer.", "layers.0.")


def expected_shapes(draft: DraftConfig, verifier: Verifier) -> dict[str, list[int]]:
    """Name -> shape of every tensor that the configured draft has."""
    return shapes_of(configured_flags(draft, verifier))


def shapes_of(flags: dict[str, Any]) -> dict[str, list[int]]:
    """Name -> shape of every tensor that a draft with these flags has."""
    hidden, inner, vocab = flags["hidden_size"], flags["intermediate_size"], flags["draft_vocab_size"]
    states = flags["num_aux_hidden_states"] * flags["target_hidden_size"]
    shapes = {"embed_tokens.weight": [flags["vocab_size"], hidden], "fc.weight": [hidden, states]}
    if flags["norm_before_fc"]:
        shapes["input_norm.weight"] = [states]
    if flags["fc_norm"]:
        shapes |= {f"fc_norm.{i}.weight": [flags["target_hidden_size"]] for i in range(flags["num_aux_hidden_states"])}
    for i in range(flags["num_layers"]):
        read = 2 * hidden if i == 0 else hidden  # the first layer reads token embedding and state side by side
        layer = {"input_layernorm": [hidden], "post_attention_layernorm": [hidden]}
        layer |= {"hidden_norm": [hidden]} if i == 0 else {}
        attention = _mla_shapes(flags, read) if flags["mla"] else _attention_shapes(flags, read)
        layer |= {f"self_attn.{name}": shape for name, shape in attention.items()}
        layer |= {"mlp.gate_proj": [inner, hidden], "mlp.up_proj": [inner, hidden], "mlp.down_proj": [hidden, inner]}
        shapes |= {f"layers.{i}.{name}.weight": shape for name, shape in layer.items()}
        if flags["attention_bias"]:
            shapes |= {f"layers.{i}.self_attn.{name}.bias": shape[:1] for name, shape in attention.items()}
    shapes |= {"norm.weight": [hidden], "lm_head.weight": [vocab, hidden]}
    if vocab != flags["vocab_size"]:
        shapes |= {"d2t": [vocab], "t2d": [flags["vocab_size"]]}
    return shapes


def _attention_shapes(flags: dict[str, Any], read: int) -> dict[str, list[int]]:
    query, key = (flags[n] * flags["head_dim"] for n in ("num_attention_heads", "num_key_value_heads"))
    return {
        "q_proj": [query, read],
        "k_proj": [key, read],
        "v_proj": [key, read],
        "o_proj": [flags["hidden_size"], query],
    }


def _mla_shapes(flags: dict[str, Any], read: int) -> dict[str, list[int]]:
    """Into a latent and out of it again, for queries and for keys with values; the rope part of keys is shared."""
    mla, heads = flags["mla"], flags["num_attention_heads"]
    return {
        "q_a_proj": [mla["q_lora_rank"], read],
        "q_a_layernorm": [mla["q_lora_rank"]],
        "q_b_proj": [heads * flags["head_dim"], mla["q_lora_rank"]],
        "kv_a_proj_with_mqa": [mla["kv_lora_rank"] + mla["qk_rope_head_dim"], read],
        "kv_a_layernorm": [mla["kv_lora_rank"]],
        "kv_b_proj": [heads * (mla["qk_nope_head_dim"] + mla["v_head_dim"]), mla["kv_lora_rank"]],
        "o_proj": [flags["hidden_size"], heads * mla["v_head_dim"]],
    }


def compare(path: Path, reference: dict[str, list[int]]) -> list[Row]:
    """Tensor by tensor, the checkpoint in folder `path` against names and shapes of either naming."""
    ours = {normalised(name): entry["shape"] for name, entry in safetensors_header(path / WEIGHTS).items()}
    wanted = {normalised(name): list(shape) for name, shape in reference.items()}
    return [Row(name, ours.get(name), wanted.get(name), _verdict(name, ours, wanted)) for name in sorted(ours | wanted)]


def differences(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.verdict not in ("equal", "left out")]


def table(rows: list[Row]) -> str:
    """The comparison for people: one line a tensor."""
    lines = [(r.name, str(r.ours or "-"), str(r.reference or "-"), r.verdict) for r in rows]
    lines.insert(0, ("tensor", "checkpoint", "configured", ""))
    return aligned(lines)


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Columns of text, each as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def _verdict(name: str, ours: dict[str, list[int]], wanted: dict[str, list[int]]) -> str:
    if name not in wanted:
        return "unexpected"
    if name not in ours:
        return "left out" if name in OPTIONAL else "missing"
    return "equal" if ours[name] == wanted[name] else "differs"
