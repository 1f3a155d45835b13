"""What the gates of an extraction saw, summed up for its record and for the report (pure)."""

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

TEXTS = ("before", "first", "last")  # of a turn


def shown_samples(prompts: Path, of_each_source: int) -> tuple[int, ...]:
    """Numbers of the conversations that the report shows: the first of each source."""
    found: dict[str, list[int]] = defaultdict(list)
    for row in pq.read_table(prompts, columns=["sample", "source"]).to_pylist():
        if len(found[row["source"]]) < of_each_source:
            found[row["source"]].append(row["sample"])
    return tuple(sorted(sample for samples in found.values() for sample in samples))


def summary(gates: Sequence[Mapping[str, Any]], layers: Sequence[int], shards: int) -> dict[str, Any]:
    """Of all shards: how near the states are to what the engine computes; the worst decides, the median informs."""
    samples = [sample for gate in gates for sample in gate["samples"]]
    account: dict[str, Any] = {
        "shards": sum(bool(gate["samples"]) for gate in gates),
        "of_shards": shards,
        "samples": len(samples),
        "seconds": round(sum(gate["seconds"] for gate in gates), 1),
        "shown": [one for gate in gates for one in gate["shown"]],
    }
    if samples:
        agreements = [sample["agreement"] for sample in samples]
        account |= {
            "mean_error_nats": statistics.fmean(one["mean_error"] for one in agreements),
            "largest_error_nats": max(one["largest_error"] for one in agreements),
            "largest_of_bound": max(one["of_bound"] for one in agreements),
            "drift": _by_layer(samples, "drift", layers),
        }
        if all(sample["from_hf"] for sample in samples):
            account["from_hf"] = _by_layer(samples, "from_hf", layers)
    return account


def _by_layer(samples: Sequence[Mapping[str, Any]], key: str, layers: Sequence[int]) -> dict[str, float]:
    """Layer id -> the median over samples."""
    return {
        str(layer): statistics.median(sample[key][index] for sample in samples) for index, layer in enumerate(layers)
    }


def sentences(account: Mapping[str, Any]) -> Iterator[str]:
    """Lines of the report."""
    if "largest_of_bound" in account:
        yield (
            f"capture gate: {account['samples']} samples of {account['shards']} of {account['of_shards']} shards; "
            f"log-probabilities {account['mean_error_nats']:.2g} nats from the engine's on average, at most "
            f"{account['largest_of_bound']:.2f} of what rounding allows"
        )
        named = {"drift": "a second reading alone", "from_hf": "a Hugging Face forward"}
        for key, what in named.items():
            if key in account:
                shown = ", ".join(f"layer {layer} {value:.2g}" for layer, value in account[key].items())
                yield f"states kept against {what}, in distances between tokens: {shown}"


def shown_rows(account: Mapping[str, Any]) -> list[list[str]]:
    """Source, sample, and for each answer what stands before it, its first and its last supervised token."""
    return [
        [one["source"], str(one["sample"]), str(number), *(repr(turn[key]) for key in TEXTS), str(turn["tokens"])]
        for one in account.get("shown", [])
        for number, turn in enumerate(one["turns"], 1)
    ]
