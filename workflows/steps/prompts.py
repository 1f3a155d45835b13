"""Step `prompts`: from configured sources to deduplicated, decontaminated, split prompts in Parquet."""

import random
from pathlib import Path
from typing import Any

from actors.native_verifier import check_model_type
from actors.verifier import Verifier
from conf.schema import OnTooLong, PromptsConfig, SourceConfig
from workflows.conversation import Conversation, keep_turns, normalise, text_key
from workflows.decontaminate import Decontaminator
from workflows.errors import users_mistake
from workflows.mix import interleaved, split
from workflows.prompt_accounting import Accounting
from workflows.prompt_length import PromptLength
from workflows.prompt_sources import read_source
from workflows.prompt_table import PromptRow, write_prompts


@users_mistake()
def prompts(cfg: PromptsConfig, verifier: Verifier, trust_remote_code: bool, out: Path) -> dict[str, Any]:
    """Write out/prompts.parquet and out/eval/<name>.parquet; returns the accounting."""
    _check(cfg)
    length = PromptLength(verifier, trust_remote_code)
    check_model_type(verifier)  # here, since transformers is imported by now: training would refuse it hours later
    evals = {name: Accounting() for name in cfg.evals}
    eval_sets = {name: _cleaned("prompts.evals", name, source, evals[name]) for name, source in cfg.evals.items()}

    total = Accounting()
    guard = Decontaminator((c for found in eval_sets.values() for c in found), cfg.decontaminate_ngram)
    pools = _pools(cfg, guard, total)
    chosen = _choose(cfg, pools, length, total)
    if not chosen:
        raise ValueError(
            f"prompts.sources leave no prompt: {total.read} read, dropped {dict(total.dropped)}. Add sources, or "
            "change the key behind the largest number: prompts.max_prompt_tokens, prompts.decontaminate_ngram."
        )
    splits = split(len(chosen), cfg.val_fraction, cfg.seed)
    rows = [
        PromptRow(i, f"{name}/{c.id}", name, side, c.messages, tokens)
        for i, ((name, c, tokens), side) in enumerate(zip(chosen, splits, strict=True))
    ]
    total.used = len(rows)
    total.check()

    (out / "eval").mkdir(parents=True, exist_ok=True)
    for name, found in eval_sets.items():
        write_prompts(out / "eval" / f"{name}.parquet", _eval_rows(cfg, name, found, length, evals[name]))
    write_prompts(out / "prompts.parquet", rows)
    return {
        "read": total.read,
        "used": total.used,
        "train": splits.count("train"),
        "val": splits.count("val"),
        "dropped": dict(total.dropped),
        "sources": {name: sum(r.source == name for r in rows) for name in cfg.sources},
        "evals": {name: account.used for name, account in evals.items()},
        "evals_dropped": {name: {k: n for k, n in account.dropped.items() if n} for name, account in evals.items()},
    }


def _check(cfg: PromptsConfig) -> None:
    if not cfg.sources:
        raise ValueError("prompts.sources is empty; name at least one source of training prompts")
    if not 0 <= cfg.val_fraction < 1:
        raise ValueError(f"prompts.val_fraction is {cfg.val_fraction}; give a fraction of at least 0 and below 1")
    for key, value in (("max_turns", cfg.max_turns), ("max_prompt_tokens", cfg.max_prompt_tokens)):
        if value < 1:
            raise ValueError(f"prompts.{key} is {value}; give at least 1")
    for section, sources in (("sources", cfg.sources), ("evals", cfg.evals)):
        for name, source in sources.items():
            if source.limit is not None and source.limit < 1:
                raise ValueError(
                    f"prompts.{section}.{name}.limit is {source.limit}; give at least 1, or leave the source out"
                )


def _cleaned(section: str, name: str, source: SourceConfig, account: Accounting) -> list[Conversation]:
    """Normalised conversations of a source, all their turns; counts malformed and empty ones."""
    found = read_source(f"{section}.{name}", source)
    normalised = [normalise(c) for c in found.conversations]
    account.read += len(normalised) + found.malformed
    account.dropped["malformed"] += found.malformed
    account.dropped["empty"] += normalised.count(None)
    return [c for c in normalised if c is not None]


def _shuffled(
    cfg: PromptsConfig, name: str, limit: int | None, found: list[Conversation], account: Accounting
) -> list[Conversation]:
    """Seeded by source, so that adding one does not reorder the others."""
    found = list(found)
    random.Random(f"{cfg.seed}/{name}").shuffle(found)
    kept = found[:limit]
    account.dropped["over_limit"] += len(found) - len(kept)
    return kept


def _pools(cfg: PromptsConfig, guard: Decontaminator, total: Accounting) -> dict[str, list[Conversation]]:
    """What may be used of each source: unique across all of them (the first one named keeps a duplicate), clean."""
    pools = {}
    seen = set()
    for name, source in cfg.sources.items():
        fresh = []
        for conversation in _cleaned("prompts.sources", name, source, total):
            conversation = keep_turns(conversation, cfg.max_turns)
            key = text_key(conversation.messages)
            if key in seen:
                total.dropped["duplicate"] += 1
            elif guard.contaminated(conversation):
                total.dropped["contaminated"] += 1
            else:
                fresh.append(conversation)
            seen.add(key)
        pools[name] = _shuffled(cfg, name, source.limit, fresh, total)
    return pools


def _choose(
    cfg: PromptsConfig, pools: dict[str, list[Conversation]], length: PromptLength, total: Accounting
) -> list[tuple[str, Conversation, int]]:
    """The first max_prompts that are short enough, with their tokens. What comes after is never tokenised."""
    chosen: list[tuple[str, Conversation, int]] = []
    for name, conversation in interleaved(pools):
        if cfg.max_prompts is not None and len(chosen) == cfg.max_prompts:
            total.dropped["over_limit"] += 1
            continue
        tokens = length(conversation.messages)
        if tokens <= cfg.max_prompt_tokens:
            chosen.append((name, conversation, tokens))
        elif cfg.too_long is OnTooLong.drop:
            total.dropped["too_long"] += 1
        else:
            raise ValueError(
                f"prompt {name}/{conversation.id} has {tokens} tokens, more than prompts.max_prompt_tokens="
                f"{cfg.max_prompt_tokens}. Raise it, or drop such prompts with prompts.too_long=drop."
            )
    return chosen


def _eval_rows(
    cfg: PromptsConfig, name: str, found: list[Conversation], length: PromptLength, account: Accounting
) -> list[PromptRow]:
    """An evaluation set is shuffled too, so that a benchmark of its first few prompts sees every category."""
    rows: list[PromptRow] = []
    for conversation in _shuffled(cfg, name, cfg.evals[name].limit, found, account):
        messages = keep_turns(conversation, cfg.max_turns).messages
        tokens = length(messages)
        if tokens > cfg.max_prompt_tokens:
            account.dropped["too_long"] += 1
        else:
            rows.append(PromptRow(len(rows), f"{name}/{conversation.id}", name, "eval", messages, tokens))
    if not rows:
        raise ValueError(
            f"prompts.evals.{name} leaves no prompt: {account.read} read, dropped {dict(account.dropped)}. Raise "
            "prompts.max_prompt_tokens, or give another set."
        )
    account.used = len(rows)
    account.check()
    return rows
