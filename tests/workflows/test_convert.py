"""Step convert, with a draft that speculators built and fake engines behind the load gate."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actors.contexts import CONTEXTS, Context, write_contexts
from actors.draft_flags import effective_flags
from actors.draft_proposals import Proposals
from actors.engine import Sampling
from actors.fake_model import hidden_states
from actors.verifier import read_verifier
from conf.schema import ConvertConfig, DraftConfig, EngineConfig, EngineKind, Naming
from tests.local_engine import LocalEngines, LocalHandle
from tests.tiny_draft import TINY_DRAFT, rewrite_tensors, write_tiny_draft
from workflows.steps import convert as step
from workflows.steps.convert import Compare, convert


def write_inputs(folder: Path, verifier: Path, **changes: Any) -> DraftConfig:
    """train/draft, and train/contexts.npz with how three held-out conversations begin."""
    cfg = write_tiny_draft(folder / "train" / "draft", verifier, **changes)
    texts = {i: f"<user>val question {i}\n<assistant>" for i in (4, 5, 6)}
    ids = {i: np.array([3 + byte for byte in text.encode()], np.int32) for i, text in texts.items()}
    contexts = [Context(i, ids[i], hidden_states(ids[i].tolist(), (1, 2, 3), 128)) for i in texts]
    write_contexts(folder / "train" / CONTEXTS, contexts)
    (folder / "out").mkdir()
    return cfg


def never(*_: Any) -> Proposals:
    raise AssertionError("a fake engine computes no draft")


def run(
    folder: Path,
    verifier: Path,
    draft: DraftConfig,
    engines: LocalEngines,
    compare: Compare = never,
    **changes: Any,
) -> dict[str, Any]:
    return convert(
        ConvertConfig(**changes),
        draft,
        EngineConfig(kind=EngineKind.fake),
        read_verifier(verifier),
        folder / "train",
        3,
        False,
        engines,
        compare,
        folder / "out",
    )


class Recording(LocalHandle):
    """Keeps what it was asked."""

    seen: list[tuple[list[list[int]], Sampling]] = []

    def trace(self, prompts: list[list[int]], sampling: Sampling) -> Any:
        Recording.seen.append((prompts, sampling))
        return super().trace(prompts, sampling)


class OtherTokens(LocalHandle):
    """Answers differently when it holds the flat format."""

    def trace(self, prompts: list[list[int]], sampling: Sampling) -> Any:
        traced = super().trace(prompts, sampling)
        assert self.spec.draft
        if self.spec.draft.path.endswith("flat"):
            traced[1][0].output_ids[7] += 1
        return traced


def test_writes_both_formats_and_accounts_for_the_gate(tiny_llama: Path, tmp_path: Path) -> None:
    draft = write_inputs(tmp_path, tiny_llama)
    Recording.seen.clear()
    engines = LocalEngines(Recording)
    accounting = run(tmp_path, tiny_llama, draft, engines, naming=Naming.midlayer, gate_prompts=2)
    json.dumps(accounting)

    assert [spec.draft.path for _, spec in engines.started if spec.draft] == [
        str(tmp_path / "out" / "speculators"),
        str(tmp_path / "out" / "flat"),
    ]
    assert [spec.draft.num_speculative_tokens for _, spec in engines.started if spec.draft] == [3, 3]
    prompts, sampling = Recording.seen[0]
    assert Recording.seen[1] == Recording.seen[0]
    texts = [bytes(i - 3 for i in ids).decode() for ids in prompts]
    assert texts == [f"<user>val question {i}\n<assistant>" for i in (4, 5)]
    assert (sampling.temperature, sampling.max_new_tokens) == (0.0, 24)

    gate = accounting["gate"]
    assert gate["prompts"] == 2 and gate["output_tokens"] == 48
    assert gate["drafts"] > 0 and sum(gate["accepted_per_position"]) == gate["accepted"]
    assert "no draft" in gate["draft"]["skipped"]
    assert accounting["embed_tokens"] == "verifier's" and accounting["naming"] == "midlayer"
    assert accounting["formats"]["flat"]["tensors"] == accounting["formats"]["speculators"]["tensors"] == 16


def test_no_gate_prompts_skips_the_engines_and_says_so(tiny_llama: Path, tmp_path: Path) -> None:
    engines = LocalEngines()
    draft = write_inputs(tmp_path, tiny_llama)
    accounting = run(tmp_path, tiny_llama, draft, engines, gate_prompts=0)
    assert engines.started == []
    assert "convert.gate_prompts" in accounting["gate"]["skipped"]
    assert (tmp_path / "out" / "flat" / "model.safetensors").exists()


def test_another_shape_than_configured_fails_with_the_table(tiny_llama: Path, tmp_path: Path) -> None:
    write_inputs(tmp_path, tiny_llama, head_dim=32)
    with pytest.raises(RuntimeError, match=r"head_dim[\s\S]*q_proj.weight +\[128, 256\] +\[256, 256\] +differs"):
        run(tmp_path, tiny_llama, TINY_DRAFT, LocalEngines())
    assert not list((tmp_path / "out").iterdir())


def test_another_flag_than_configured_fails_before_any_engine(tiny_llama: Path, tmp_path: Path) -> None:
    write_inputs(tmp_path, tiny_llama, norm_output=False)  # no tensor tells
    engines = LocalEngines()
    with pytest.raises(RuntimeError, match="norm_output: False, configured True"):
        run(tmp_path, tiny_llama, TINY_DRAFT, engines)
    assert engines.started == []


def test_a_draft_with_values_that_are_not_finite_fails(tiny_llama: Path, tmp_path: Path) -> None:
    draft = write_inputs(tmp_path, tiny_llama)
    rewrite_tensors(tmp_path / "train" / "draft", lambda t: t["fc.weight"][0, 0].fill_(torch.inf))
    with pytest.raises(RuntimeError, match="fc.weight has values that are not finite"):
        run(tmp_path, tiny_llama, draft, LocalEngines())


def test_the_gate_fails_when_the_formats_propose_differently(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A difference that the flags do not show, here in the weights, shows in the counters."""
    draft = write_inputs(tmp_path, tiny_llama)
    original = step.write_flat

    def write_flat_badly(*args: Any) -> None:
        original(*args)
        rewrite_tensors(args[2], lambda tensors: tensors["fc.weight"].neg_())

    monkeypatch.setattr(step, "write_flat", write_flat_badly)
    with pytest.raises(RuntimeError, match="not the same draft"):
        run(tmp_path, tiny_llama, draft, LocalEngines())


def test_the_gate_fails_when_the_engine_answers_differently(tiny_llama: Path, tmp_path: Path) -> None:
    draft = write_inputs(tmp_path, tiny_llama)
    with pytest.raises(RuntimeError, match="different tokens for prompt 1, from token 7"):
        run(tmp_path, tiny_llama, draft, LocalEngines(OtherTokens))


def test_the_gate_fails_when_nothing_was_drafted(tiny_llama: Path, tmp_path: Path) -> None:
    class Idle(LocalHandle):
        """Never uses its draft."""

        def counters(self) -> Any:
            return type(super().counters())()

    draft = write_inputs(tmp_path, tiny_llama)
    with pytest.raises(RuntimeError, match="speculators format: the engine drafted nothing"):
        run(tmp_path, tiny_llama, draft, LocalEngines(Idle))


def test_a_rerun_gives_the_same_files_and_accounting(tiny_llama: Path, tmp_path: Path) -> None:
    draft = write_inputs(tmp_path, tiny_llama)
    first = run(tmp_path, tiny_llama, draft, LocalEngines())
    flags = effective_flags(tmp_path / "out" / "flat")
    assert run(tmp_path, tiny_llama, draft, LocalEngines()) == first
    assert effective_flags(tmp_path / "out" / "flat") == flags
