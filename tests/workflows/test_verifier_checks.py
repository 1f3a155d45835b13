"""What is refused once the verifier is known: ranks that split no heads, code that was not allowed, unknown tokens."""

from dataclasses import replace
from typing import Any

import pytest

from actors.verifier import Verifier
from conf.schema import DraftConfig, EngineConfig, EngineKind, EyrieConfig, MlaConfig, VerifierConfig
from workflows.verifier_checks import kept_problems, rank_problems, tokenizer_problems

KIMI = Verifier(
    path="/models/kimi",
    fingerprint="0" * 16,
    hidden_size=7168,
    num_layers=61,
    vocab_size=163840,
    max_position_embeddings=262144,
    architecture="KimiK25ForConditionalGeneration",
    num_attention_heads=64,
    rms_norm_eps=1e-5,
    tokenizer_code="tokenization_kimi.py",
    added_tokens={f"<|reserved_token_{i}|>": 163590 + i for i in range(10)} | {"<think>": 163606, "</think>": 163607},
)
VERIFIERS, DRAFTS = "the verifier's 64 attention heads", "draft.num_attention_heads"
RESHAPE = ", or another shape of the draft"
MLA = MlaConfig(1536, 512, 128, 64, 128)


def config(*, tp: int = 1, kept: list[str] | None = None, kind: EngineKind = EngineKind.vllm, **draft: Any) -> Any:
    shape = {"num_attention_heads": 64, "num_key_value_heads": 64, "draft_vocab_size": 32000, **draft}
    return EyrieConfig(
        verifier=VerifierConfig(source="/models/kimi", kept_tokens=kept or []),
        draft=DraftConfig(**shape),
        engine=EngineConfig(kind=kind, tensor_parallel_size=tp),
    )


@pytest.mark.parametrize(
    ("tp", "draft", "heads"),
    [
        (8, {}, 64),
        (64, {"num_key_value_heads": 8}, 64),  # each KV head lies on eight ranks
        (4, {"num_key_value_heads": 8}, 64),
        (8, {"num_key_value_heads": 3, "mla": MLA}, 64),  # MLA has no KV heads to split
        (3, {"num_attention_heads": 9, "num_key_value_heads": 3}, 9),
    ],
)
def test_ranks_that_split_all_heads_are_accepted(tp: int, draft: dict[str, Any], heads: int) -> None:
    assert list(rank_problems(config(tp=tp, **draft), replace(KIMI, num_attention_heads=heads))) == []


@pytest.mark.parametrize(
    ("tp", "draft", "named", "fit"),
    [
        (3, {}, f"{VERIFIERS}, {DRAFTS} 64, draft.num_key_value_heads 64", "1, 2, 4, 8, 16, 32, 64"),
        (3, {"mla": MLA}, f"{VERIFIERS}, {DRAFTS} 64", "1, 2, 4, 8, 16, 32, 64"),
        (3, {"num_attention_heads": 36, "num_key_value_heads": 36}, VERIFIERS, "1, 2, 4"),
        (8, {"num_attention_heads": 36, "num_key_value_heads": 4}, f"{DRAFTS} 36", f"1, 2, 4{RESHAPE}"),
        (
            8,
            {"num_attention_heads": 48, "num_key_value_heads": 12},
            "draft.num_key_value_heads 12",
            f"1, 2, 4{RESHAPE}",
        ),
    ],
)
def test_ranks_that_do_not_are_refused_with_those_that_do(tp: int, draft: dict[str, Any], named: str, fit: str) -> None:
    (message,) = rank_problems(config(tp=tp, **draft), KIMI)
    assert message == f"engine.tensor_parallel_size: {tp} ranks cannot share {named}; give one of {fit}"


def test_a_fake_engine_splits_nothing() -> None:
    assert list(rank_problems(config(tp=3, kind=EngineKind.fake), KIMI)) == []


def test_code_of_a_tokenizer_is_not_run_unasked() -> None:
    cfg = config()
    (message,) = tokenizer_problems(cfg, KIMI)
    assert message.startswith("verifier.trust_remote_code: false") and "/models/kimi/tokenization_kimi.py" in message
    assert message.endswith("set verifier.trust_remote_code=true")
    cfg.verifier.trust_remote_code = True
    assert list(tokenizer_problems(cfg, KIMI)) == []
    cfg.verifier.trust_remote_code = False
    assert list(tokenizer_problems(cfg, replace(KIMI, tokenizer_code=None))) == []


def test_an_unknown_kept_token_is_refused_with_those_that_are_close() -> None:
    (message,) = kept_problems(config(kept=["<think>", "</thinks>"]), KIMI)
    assert message.startswith("verifier.kept_tokens: '</thinks>' is no added token")
    assert "Did you mean '</think>'" in message and "it has 12: '<|reserved_token_0|>'" in message
    assert "token_9|>', …" in message and "'</think>', …" not in message  # the first ten
    (message,) = kept_problems(config(kept=["xyz"]), replace(KIMI, added_tokens={}))
    assert "it has none" in message and "Did you mean" not in message


def test_known_kept_tokens_are_accepted_and_unread_ones_are_not_judged() -> None:
    assert list(kept_problems(config(kept=["<think>", "</think>"], draft_vocab_size=2), KIMI)) == []
    assert list(kept_problems(config(kept=["xyz"]), replace(KIMI, added_tokens=None))) == []


def test_more_kept_tokens_than_rows_are_refused() -> None:
    (message,) = kept_problems(config(kept=["<think>", "</think>"], draft_vocab_size=1), KIMI)
    assert message == "verifier.kept_tokens: 2 tokens, and draft.draft_vocab_size is 1; give fewer or raise it"
    assert list(kept_problems(config(kept=["<think>", "<think>"], draft_vocab_size=1), KIMI)) == []


def test_a_kept_token_beyond_the_vocabulary_is_refused() -> None:
    (message,) = kept_problems(config(kept=["<think>"]), replace(KIMI, vocab_size=163600))
    assert "'<think>' has the id 163606, beyond the verifier's vocabulary of 163600; take it out" in message
