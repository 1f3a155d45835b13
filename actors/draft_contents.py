"""What a draft's tensors hold: values that training must have filled, and copies of the verifier's (pure).

Tensors are read one by one, the two embeddings in slices: of a verifier of 540 GB only these rows are read.
"""

from pathlib import Path

import torch
from safetensors import safe_open

from actors.draft_shapes import WEIGHTS
from actors.verifier import Verifier, safetensors_header
from actors.verifier_tensors import EMBEDDING, find_tensor

COMPARED_ROWS = 1 << 14  # of an embedding at a time


def content_faults(path: Path) -> list[str]:
    """What is wrong with the values: not finite, or vocabulary maps that do not belong together."""
    faults = []
    with safe_open(path / WEIGHTS, framework="pt") as file:
        names = list(file.keys())
        for name in names:
            tensor = file.get_tensor(name)
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                faults.append(f"{name} has values that are not finite: it was never loaded, or training diverged")
        if "d2t" in names and "t2d" in names:
            d2t, t2d = file.get_tensor("d2t"), file.get_tensor("t2d")
            targets = torch.arange(len(d2t)) + d2t
            if not torch.equal(targets, t2d.nonzero().flatten()):
                faults.append("d2t and t2d name different tokens: the draft would propose the wrong ids")
    return faults


def shares_embedding(draft: Path, verifier: Verifier) -> bool:
    """Whether the draft's token embedding is the verifier's, bit for bit."""
    if EMBEDDING not in safetensors_header(draft / WEIGHTS):
        return True
    place = find_tensor(Path(verifier.path), EMBEDDING)
    with safe_open(draft / WEIGHTS, framework="pt") as a, safe_open(place.file, framework="pt") as b:
        ours, theirs = a.get_slice(EMBEDDING), b.get_slice(place.name)
        if ours.get_shape() != theirs.get_shape() or ours.get_dtype() != theirs.get_dtype():
            return False
        rows = ours.get_shape()[0]
        starts = range(0, rows, COMPARED_ROWS)
        return all(torch.equal(ours[i : i + COMPARED_ROWS], theirs[i : i + COMPARED_ROWS]) for i in starts)
