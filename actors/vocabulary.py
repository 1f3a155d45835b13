"""The draft's vocabulary: the verifier's tokens that its answers use most, by speculators' own mapping.

Beside them the kept ones: markers of thoughts and tool calls are too rare to be counted in, and a draft that cannot say
them breaks off at every one.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from speculators.train.vocab_mapping import build_vocab_mappings_from_distribution

from actors.commit import whole_file
from actors.shard_store import read_columns


@dataclass(frozen=True)
class Vocabulary:
    """d2t [Vd] int64: target id = draft id + d2t[draft id]. t2d [V] bool. None for both: the full vocabulary."""

    d2t: torch.Tensor | None
    t2d: torch.Tensor | None
    coverage: float  # share of supervised tokens that the draft can say
    counted: int  # supervised tokens of the training split


def count_tokens(shards: Iterable[str], samples: set[int]) -> Counter[int]:
    """How often each token id is supervised in the given samples."""
    counts: Counter[int] = Counter()
    for file in shards:
        table = read_columns(file, ["sample", "token_id", "loss_mask"]).to_pandas()
        chosen = table[table["loss_mask"] & table["sample"].isin(samples)]
        counts.update(chosen["token_id"].value_counts().to_dict())
    return counts


def build_vocabulary(
    counts: Counter[int], draft_vocab_size: int, vocab_size: int, kept: Collection[int] = ()
) -> Vocabulary:
    """`draft_vocab_size` tokens: those in `kept`, then the most frequent. ValueError when there is nothing to count."""
    total = sum(counts.values())
    if total == 0:
        raise ValueError("no supervised token in the training split; look at the extract step's accounting")
    if draft_vocab_size == vocab_size:
        return Vocabulary(None, None, 1.0, total)
    if len(set(kept)) > draft_vocab_size:
        raise ValueError(
            f"verifier.kept_tokens: {len(set(kept))} tokens do not fit draft.draft_vocab_size {draft_vocab_size}; give "
            "fewer or raise it"
        )
    ranked = dict(counts) | dict.fromkeys(kept, total + 1)  # before every other
    d2t, t2d = build_vocab_mappings_from_distribution(ranked, draft_vocab_size, vocab_size)
    covered = sum(n for token, n in counts.items() if t2d[token])
    return Vocabulary(d2t, t2d, covered / total, total)


def save_vocabulary(vocabulary: Vocabulary, file: Path) -> None:
    with whole_file(file) as temporary:
        torch.save(vars(vocabulary), temporary)


def load_vocabulary(file: Path) -> Vocabulary:
    return Vocabulary(**torch.load(file, weights_only=True))
