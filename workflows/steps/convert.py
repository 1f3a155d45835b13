"""Step `convert`: the trained draft in each format that vLLM loads, checked and loaded once.

A Llama draft has two, which must then draft the same; a draft with MLA has the flat one only.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from actors.acceptance import Acceptance, difference
from actors.contexts import CONTEXTS, Context, read_contexts
from actors.draft_contents import content_faults, shares_embedding
from actors.draft_flags import configured_flags, effective_flags, flag_differences
from actors.draft_formats import write_flat, write_speculators
from actors.draft_proposals import Proposals
from actors.draft_shapes import WEIGHTS, compare, differences, expected_shapes, table
from actors.draft_trace import DraftTrace
from actors.engine import DraftSpec, EngineSpec, Sampling, SpecCounters
from actors.verifier import Verifier, safetensors_header
from conf.schema import ConvertConfig, DraftConfig, EngineConfig
from workflows.draft_gate import check_proposals, check_states
from workflows.engines import Engines, checked

log = logging.getLogger(__name__)
Compare = Callable[[Path, list[DraftTrace], str], Proposals]  # the trainer's checkpoint, traces, the engine's dtype
GATE_SAMPLING = Sampling(max_new_tokens=24, ignore_eos=True)  # greedy; a short answer must not end the comparison


def convert(
    cfg: ConvertConfig,
    draft_cfg: DraftConfig,
    engine: EngineConfig,
    verifier: Verifier,
    train_out: Path,
    num_speculative_tokens: int,
    trust_remote_code: bool,
    engines: Engines,
    compare: Compare,
    out: Path,
) -> dict[str, Any]:
    """Write out/flat and, but for MLA, out/speculators from train_out/draft; returns the accounting."""
    draft = train_out / "draft"
    formats = ("flat",) if draft_cfg.mla else ("speculators", "flat")
    _check_tensors(draft, draft_cfg, verifier)
    if "speculators" in formats:
        write_speculators(draft, verifier, out / "speculators", num_speculative_tokens)
    write_flat(draft, verifier, out / "flat", cfg.naming, num_speculative_tokens)
    for name in formats:
        _check_tensors(out / name, draft_cfg, verifier)
        _check_flags(out / name, draft_cfg, verifier)
    log.info("convert: written and checked: %s", ", ".join(formats))
    gate: dict[str, Any] = {"skipped": "convert.gate_prompts is 0: no engine has loaded these checkpoints"}
    if cfg.gate_prompts:
        specs = {
            name: EngineSpec(
                verifier.path, engine, trust_remote_code, draft=DraftSpec(str(out / name), num_speculative_tokens)
            )
            for name in formats
        }
        contexts = read_contexts(train_out / CONTEXTS)[: cfg.gate_prompts]
        gate, traces = _load_gate(specs, contexts, engines)
        gate |= _draft_gate(draft, draft_cfg, contexts, traces, engine.dtype, compare)
    return {
        "formats": {name: _described(out / name) for name in formats},
        "naming": cfg.naming.value,
        "embed_tokens": "verifier's" if shares_embedding(draft, verifier) else "own",
        "gate": gate,
    }


def _check_tensors(path: Path, draft_cfg: DraftConfig, verifier: Verifier) -> None:
    rows = compare(path, expected_shapes(draft_cfg, verifier))
    if differences(rows):
        raise RuntimeError(
            f"{path / WEIGHTS} has not the shape that the draft.* keys give (head_dim is the usual suspect):\n"
            f"{table(rows)}"
        )
    if faults := content_faults(path):
        raise RuntimeError(f"{path / WEIGHTS}: {'; '.join(faults)}. Look at the train step's metrics and its log.")


def _check_flags(path: Path, draft_cfg: DraftConfig, verifier: Verifier) -> None:
    wrong = flag_differences(effective_flags(path), configured_flags(draft_cfg, verifier))
    if wrong:
        raise RuntimeError(
            f"{path}/config.json: vLLM would run another model than was trained: {'; '.join(wrong)}. Compare it with "
            "the config.json of the train step and with the draft.* keys."
        )


def _load_gate(
    specs: dict[str, EngineSpec], contexts: list[Context], engines: Engines
) -> tuple[dict[str, Any], dict[str, list[DraftTrace]]]:
    """Load each format in an engine: all must write and propose the same. One request at a time, as batches differ.

    Returns the account, and what each draft did, where the engine computes one.
    """
    prompts = [context.token_ids.tolist() for context in contexts]
    outputs: dict[str, list[list[int]]] = {}
    counted: dict[str, SpecCounters] = {}
    traces: dict[str, list[DraftTrace]] = {}
    for name, spec in specs.items():
        engines.prepare(spec, name=name)
    for name, spec in specs.items():
        what = f"convert: load gate of the {name} format"
        with engines(spec, name=name) as handle:
            log.info("convert: the engine has loaded the %s format", name)
            before = handle.counters()
            traced = handle.trace(prompts, GATE_SAMPLING)
            counted[name] = difference(before, handle.counters())
        completions = checked([completion for completion, _ in traced], prompts, GATE_SAMPLING, what)
        outputs[name] = [c.output_ids for c in completions]
        traces[name] = [trace for _, trace in traced if trace]
        try:
            Acceptance.of(counted[name])
        except ValueError as error:
            raise RuntimeError(f"{what}: {error}") from error
    first, *others = specs
    for other in others:
        _same(first, other, outputs, counted)
    account = {
        "prompts": len(prompts),
        "output_tokens": sum(map(len, outputs[first])),
        "drafts": counted[first].drafts,
        "accepted": counted[first].accepted,
        "accepted_per_position": list(counted[first].accepted_per_position),
    }
    return account, traces


def _draft_gate(
    draft: Path,
    cfg: DraftConfig,
    contexts: list[Context],
    traces: dict[str, list[DraftTrace]],
    dtype: str,
    compare: Compare,
) -> dict[str, Any]:
    """In each format the draft must read the states that were trained on, and propose what the trained one does."""
    found: dict[str, Any] = {}
    for name, ours in traces.items():
        if not ours:
            return {"draft": {"skipped": "the engine computes no draft"}}
        try:
            states = check_states(contexts, ours, cfg.aux_layers, dtype)
            found[name] = {"states": states} | check_proposals(compare(draft, ours, dtype), dtype)
        except RuntimeError as error:
            raise RuntimeError(f"convert: draft gate of the {name} format: {error}") from error
    log.info("convert: the engine drafts what the trainer does: %s", found)
    return {"draft": found}


def _same(first: str, second: str, outputs: dict[str, list[list[int]]], counted: dict[str, SpecCounters]) -> None:
    """RuntimeError when two formats are not the same draft."""
    for index, (a, b) in enumerate(zip(outputs[first], outputs[second], strict=True)):
        if a != b:
            at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
            raise RuntimeError(
                f"convert: with the {first} and the {second} format the verifier wrote different tokens for prompt "
                f"{index}, from token {at} on. Same engine, same prompt, greedy: look for an engine that is not "
                "deterministic (engine.extra, engine.env) before you look at the draft."
            )
    if counted[first] != counted[second]:
        raise RuntimeError(
            f"convert: the two formats are not the same draft: {first} {counted[first]}, {second} {counted[second]}. "
            "Compare their config.json files, first of all norm_before_residual, norm_before_fc and the aux layers."
        )


def _described(path: Path) -> dict[str, Any]:
    return {"bytes": (path / WEIGHTS).stat().st_size, "tensors": len(safetensors_header(path / WEIGHTS))}
