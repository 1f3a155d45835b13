"""What a configuration asks of its verifier beyond layers and sizes: ranks, tokenizer code, kept tokens (pure)."""

import difflib
from collections.abc import Iterator
from pathlib import Path

from actors.verifier import Verifier
from conf.schema import DraftConfig, EngineKind, EyrieConfig

SHOWN = 10  # tokens of a checkpoint in a message


def tokenizer_problems(cfg: EyrieConfig, verifier: Verifier) -> Iterator[str]:
    """Without its own code transformers would not fail: it would take another tokenizer."""
    if verifier.tokenizer_code and not cfg.verifier.trust_remote_code:
        yield (
            "verifier.trust_remote_code: false, but this verifier's tokenizer is Python in its checkpoint "
            f"({Path(verifier.path) / verifier.tokenizer_code}), and without it transformers would quietly take "
            "another one, whose ids are wrong. Read that file, then set verifier.trust_remote_code=true"
        )


def rank_problems(cfg: EyrieConfig, verifier: Verifier) -> Iterator[str]:
    """Every rank of an engine holds the same number of attention heads, of the verifier and of the draft."""
    ranks = cfg.engine.tensor_parallel_size
    if cfg.engine.kind is EngineKind.fake or ranks < 1:
        return
    if why := _misfits(ranks, cfg.draft, verifier):
        fit = [n for n in range(1, verifier.num_attention_heads + 1) if not _misfits(n, cfg.draft, verifier)]
        reshape = "" if verifier.num_attention_heads % ranks else ", or another shape of the draft"
        yield (
            f"engine.tensor_parallel_size: {ranks} ranks cannot share {', '.join(why)}; give one of "
            f"{', '.join(map(str, fit))}{reshape}"
        )


def _misfits(ranks: int, draft: DraftConfig, verifier: Verifier) -> list[str]:
    """What cannot be split over so many ranks. KV heads may also be repeated; MLA has none to split."""
    kv = draft.num_key_value_heads
    found = []
    if verifier.num_attention_heads % ranks:
        found.append(f"the verifier's {verifier.num_attention_heads} attention heads")
    if draft.num_attention_heads % ranks:
        found.append(f"draft.num_attention_heads {draft.num_attention_heads}")
    if draft.mla is None and kv >= 1 and kv % ranks and ranks % kv:
        found.append(f"draft.num_key_value_heads {kv}")
    return found


def kept_problems(cfg: EyrieConfig, verifier: Verifier) -> Iterator[str]:
    """Tokens that the draft must be able to say, and that the checkpoint lacks."""
    kept, known = cfg.verifier.kept_tokens, verifier.added_tokens
    if known is None:
        return
    for token in dict.fromkeys(kept):
        if token not in known:
            close = difflib.get_close_matches(token, known, n=3)
            hint = f"Did you mean {' or '.join(map(repr, close))}? " if close else ""
            first = ", ".join(map(repr, list(known)[:SHOWN])) + (", …" if len(known) > SHOWN else "")
            has = f"it has {len(known)}: {first}" if known else "it has none"
            yield (
                f"verifier.kept_tokens: {token!r} is no added token of the verifier. {hint}Correct it or take it out "
                f"({has})"
            )
        elif known[token] >= verifier.vocab_size:
            yield (
                f"verifier.kept_tokens: {token!r} has the id {known[token]}, beyond the verifier's vocabulary of "
                f"{verifier.vocab_size}; take it out"
            )
    if (count := len(set(kept))) > cfg.draft.draft_vocab_size:
        yield (
            f"verifier.kept_tokens: {count} tokens, and draft.draft_vocab_size is {cfg.draft.draft_vocab_size}; give "
            "fewer or raise it"
        )
