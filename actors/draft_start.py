"""Training goes on from a published draft: its vocabulary and its weights, in speculators' model.

What the verifier owns stays the verifier's: verifier_lm_head and verifier_norm, which make the targets, are in no
draft's file, and `build_draft` has filled them by the draft's own t2d. lm_head is the draft's rows, frozen as always.
"""

import logging
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from actors.draft_contents import EMBEDDING
from actors.draft_import import target_ids
from actors.draft_shapes import WEIGHTS, normalised
from actors.vocabulary import Vocabulary, build_vocabulary

log = logging.getLogger("eyrie.train")
KEY = "train.init_from"
NOT_IN_A_DRAFT = {"verifier_lm_head.weight", "verifier_norm.weight"}
MAPS = {"d2t", "t2d"}  # in the model already, from the vocabulary


def start_vocabulary(folder: Path, counts: Counter[int], vocab_size: int, kept: Collection[int] = ()) -> Vocabulary:
    """That of the draft in `folder`, with the share of our answers that it covers. `kept` tokens cannot be added."""
    whole = build_vocabulary(counts, vocab_size, vocab_size)
    targets = target_ids(KEY, folder, vocab_size)
    if targets is None:
        return whole
    t2d = torch.zeros(vocab_size, dtype=torch.bool).index_fill(0, targets, True)
    if lost := [token for token in kept if not t2d[token]]:
        log.warning(
            "train: ids %s of verifier.kept_tokens are not in the vocabulary of train.init_from, and cannot be", lost
        )
    covered = sum(n for token, n in counts.items() if t2d[token])
    return Vocabulary(targets - torch.arange(len(targets)), t2d, covered / whole.counted, whole.counted)


def start_from(model: Any, folder: Path) -> None:
    """Copy the draft's weights into a model that `build_draft` made with its vocabulary."""
    found = {normalised(name): tensor for name, tensor in load_file(folder / WEIGHTS).items()}
    weights = {name: tensor for name, tensor in found.items() if name not in MAPS}
    kept = model.load_state_dict(weights, strict=False)  # copies, into the fp32 weights that are there
    lost = set(kept.missing_keys) - NOT_IN_A_DRAFT - MAPS - {EMBEDDING}  # without one of its own: the verifier's
    assert not lost and not kept.unexpected_keys, f"{folder}: {sorted(lost)} missing, {kept.unexpected_keys} unknown"
