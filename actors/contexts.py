"""contexts.npz in the output of training: how a few held-out conversations begin, with the states that were trained on.

The draft gate gives these tokens to the engine and asks whether its draft reads these states (pure: numpy).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from actors.commit import whole_file

CONTEXTS = "contexts.npz"
LONGEST = 256  # tokens whose states are kept of each


@dataclass(frozen=True)
class Context:
    """Tokens up to the first answer: P of them, S <= P with states; A aux layers, H hidden size."""

    sample: int
    token_ids: np.ndarray  # [P] int32
    states: np.ndarray  # [S, A, H] uint16, bf16 bits


def write_contexts(file: Path, contexts: Sequence[Context]) -> None:
    arrays = {f"{one.sample}/{key}": getattr(one, key) for one in contexts for key in ("token_ids", "states")}
    with whole_file(file) as temporary, temporary.open("wb") as out:
        np.savez(out, allow_pickle=False, **arrays)


def read_contexts(file: Path) -> list[Context]:
    """In the order of their sample numbers."""
    with np.load(file) as content:
        samples = sorted({int(name.split("/")[0]) for name in content.files})
        return [Context(n, content[f"{n}/token_ids"], content[f"{n}/states"]) for n in samples]
