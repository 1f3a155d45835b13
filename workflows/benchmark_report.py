"""What the report says of the benchmark: the draft, and the reference draft beside it where one was measured (pure)."""

from collections.abc import Iterator, Mapping
from typing import Any


def measured_sets(account: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every set that was measured, by what the table calls it; the reference's follows ours."""
    reference = account.get("reference", {}).get("sets", {})
    for name, one in account["sets"].items():
        yield name, one
        if name in reference:
            yield f"{name} (reference)", reference[name]


def sentences(account: Mapping[str, Any]) -> Iterator[str]:
    """Speed of both drafts, and how far ours is ahead or behind."""
    if speed := account.get("speed"):
        plain, ours = speed["tokens_per_s_plain"], speed["tokens_per_s_draft"]
        yield f"speed at batch 1: {plain:.1f} tokens/s without the draft, {ours:.1f} with it: {speed['speedup']:.2f}x"
    if held := account.get("held_out"):
        yield _parity(held)
    if reference := account.get("reference"):
        speed, others = reference["speed"], reference["sets"]
        yield (
            f"the reference {reference['path']}: {speed['tokens_per_s_draft']:.1f} tokens/s at batch 1, "
            f"{speed['speedup']:.2f}x"
        )
        ahead = {
            name: one["acceptance_length"] - others[name]["acceptance_length"] for name, one in account["sets"].items()
        }
        shown = ", ".join(f"{name} {difference:+.3f}" for name, difference in ahead.items())
        yield f"acceptance length, ours less the reference's: {shown}"


def _parity(held: Mapping[str, Any]) -> str:
    if "skipped" in held:
        return f"held-out conversations: nothing compared, {held['skipped']}"
    sides = (
        f"{name} {side['acceptance_length']:.3f} [{side['interval'][0]:.3f}, {side['interval'][1]:.3f}] "
        f"({' '.join(f'{rate:.3f}' for rate in side['per_position'])})"
        for name, side in (("predicted", held["predicted"]), ("measured", held["measured"]))
    )
    return f"acceptance length on {held['conversations']} held-out conversations: {', '.join(sides)}"
