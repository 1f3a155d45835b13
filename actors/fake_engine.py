"""A deterministic engine without a model: the Engine protocol on numpy, for tests and for clusters that we lack (pure).

States are a function of prefix and layer id, the same whether a token was read or written: see actors/fake_model.py.
`config.extra` may hold `seconds_per_token` (one pass of the verifier) and `die_on_token` (an id that kills the engine).
"""

import asyncio
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from actors.draft_flags import effective_flags
from actors.draft_shapes import WEIGHTS, compare, differences, normalised, shapes_of, table
from actors.draft_trace import DraftTrace
from actors.engine import Completion, DraftSpec, EngineDead, EngineSpec, Message, Sampling, SpecCounters, TokenLogprobs
from actors.fake_model import BYTES, FIRST, extend, hidden_states, mix, next_token, prefix_hashes
from actors.verifier import Verifier, read_config, read_verifier, safetensors_header, text_config
from actors.verifier_head import VerifierHead, bf16_to_float


class FakeEngine:
    """Honours actors/engine.py; same spec and prompt, same answer, on every machine."""

    def __init__(self, spec: EngineSpec):
        self._spec = spec
        self._verifier = read_verifier(spec.verifier)
        if self._verifier.vocab_size < FIRST + BYTES:
            raise ValueError(f"engine.kind=fake needs a verifier.source with at least {FIRST + BYTES} tokens")
        self._eos = _eos(Path(spec.verifier))
        self._seconds_per_token = float(spec.config.extra.get("seconds_per_token", 0.0))
        self._die_on_token = spec.config.extra.get("die_on_token")
        self._draft = _load_draft(spec.draft, self._verifier) if spec.draft else 0
        self._counters = SpecCounters(
            accepted_per_position=(0,) * (spec.draft.num_speculative_tokens if spec.draft else 0)
        )
        self._head: VerifierHead | None = None
        self._closed = False

    async def render(self, messages: list[Message]) -> list[int]:
        """An answer ends in EOS, as in real templates, so that a later turn extends what was written."""
        ids: list[int] = []
        for m in messages:
            ids += _ids(f"<{m['role']}>{m['content']}") + [self._eos] * (m["role"] == "assistant") + _ids("\n")
        return ids + _ids("<assistant>")

    async def decode(self, ids: list[int]) -> str:
        return bytes(i - FIRST for i in ids if FIRST <= i < FIRST + BYTES).decode(errors="surrogateescape")

    async def generate(
        self, prompt_ids: list[int], sampling: Sampling, *, capture: bool = False, prompt_logprobs: int = 0
    ) -> Completion:
        assert not self._closed, "the engine was closed"
        assert not capture or self._spec.capture_layers, "this engine was not started to capture"
        self._check(prompt_ids)
        room = self._spec.config.max_model_len - len(prompt_ids)
        output, reason = self._write(prompt_ids, sampling, min(sampling.max_new_tokens, room))
        passes = self._speculate(prompt_ids, len(output)) if self._spec.draft else len(output)
        await asyncio.sleep(self._seconds_per_token * passes)
        states = None
        if capture:
            states = hidden_states([*prompt_ids, *output][:-1], self._spec.capture_layers, self._verifier.hidden_size)
        said = self._logprobs(prompt_ids, prompt_logprobs) if prompt_logprobs else None
        return Completion(list(prompt_ids), output, reason, states, said)

    async def trace(self, prompt_ids: list[int], sampling: Sampling) -> tuple[Completion, DraftTrace | None]:
        return await self.generate(prompt_ids, sampling), None

    def counters(self) -> SpecCounters:
        return self._counters

    def describe(self) -> dict[str, Any]:
        return {"engine": "fake", "version": "1", "device": "none"}

    def close(self) -> None:
        self._closed = True

    def _check(self, prompt_ids: list[int]) -> None:
        if self._die_on_token in prompt_ids:
            raise EngineDead(f"config.extra.die_on_token: the prompt holds {self._die_on_token}")
        if not prompt_ids or min(prompt_ids) < 0 or max(prompt_ids) >= self._verifier.vocab_size:
            raise ValueError(f"a prompt needs ids of a vocabulary of {self._verifier.vocab_size}, and at least one")
        if len(prompt_ids) >= self._spec.config.max_model_len:
            raise ValueError(
                f"engine.max_model_len: a prompt of {len(prompt_ids)} tokens leaves no room for an answer in "
                f"{self._spec.config.max_model_len}. Raise engine.max_model_len or lower prompts.max_prompt_tokens."
            )

    def _logprobs(self, prompt_ids: list[int], top: int) -> list[TokenLogprobs]:
        """From the states and the verifier's own lm_head, as a real engine has them (what it writes is drawn apart)."""
        last = hidden_states(prompt_ids[:-1], (self._verifier.last_layer,), self._verifier.hidden_size)[:, 0]
        self._head = self._head or VerifierHead(self._verifier.path)
        inputs = self._head.normed(bf16_to_float(last))
        tokens = np.column_stack([self._head.likeliest(inputs, top), prompt_ids[1:]])
        logprobs = self._head.predict(inputs, tokens).logprobs
        return [dict(zip(*row, strict=True)) for row in zip(tokens.tolist(), logprobs.tolist(), strict=True)]

    def _write(self, prompt_ids: list[int], sampling: Sampling, limit: int) -> tuple[list[int], str]:
        """Output ids, ending in EOS where the answer's own length fits, and the finish reason."""
        prefix = prefix_hashes(prompt_ids)[-1]
        salt = 1 + (sampling.seed or 0) if sampling.temperature > 0 else 0
        length = math.inf if sampling.ignore_eos else 4 + mix(prefix ^ salt) % 28
        last = prompt_ids[-1]
        output: list[int] = []
        while len(output) < limit:
            if len(output) + 1 >= length:
                return [*output, self._eos], "stop"
            last = next_token(last, prefix, salt)
            prefix = extend(prefix, last)
            output.append(last)
        return output, "length"

    def _speculate(self, prompt_ids: list[int], written: int) -> int:
        """Count the drafts behind `written` tokens; returns the passes of the verifier that they took."""
        assert self._spec.draft
        k, before = self._spec.draft.num_speculative_tokens, self._counters
        state, tokens, drafts, positions = prefix_hashes(prompt_ids)[-1] ^ self._draft, 1, 0, [0] * k
        while tokens < written:  # the first token comes from the prompt, without a draft
            state = mix(state)
            accepted = min(state % (k + 1), (state >> 32) % (k + 1))
            for position in range(accepted):
                positions[position] += 1
            drafts, tokens = drafts + 1, tokens + 1 + accepted
        self._counters = SpecCounters(
            drafts=before.drafts + drafts,
            draft_tokens=before.draft_tokens + drafts * k,
            accepted=before.accepted + sum(positions),
            accepted_per_position=tuple(a + b for a, b in zip(before.accepted_per_position, positions, strict=True)),
        )
        return 1 + drafts


def _ids(text: str) -> list[int]:
    return [FIRST + byte for byte in text.encode(errors="surrogateescape")]  # any bytes survive decode and render


def _load_draft(draft: DraftSpec, verifier: Verifier) -> int:
    """A number that stands for what the draft computes: equal tensors and flags, equal number. Refuses bad files."""
    path = Path(draft.path)
    flags = effective_flags(path)
    rows = compare(path, shapes_of(flags))
    if differences(rows):
        raise ValueError(f"{path}: the draft does not load:\n{table(differences(rows))}")
    for name, wanted in (("vocab_size", verifier.vocab_size), ("target_hidden_size", verifier.hidden_size)):
        if flags[name] != wanted:
            raise ValueError(f"{path}: the draft's {name} is {flags[name]}, the verifier's {wanted}")
    if not flags["aux_layers"] or max(flags["aux_layers"]) > verifier.num_layers:
        raise ValueError(f"{path}: aux layers {flags['aux_layers']} of a verifier with {verifier.num_layers} layers")
    computed = json.dumps(flags, sort_keys=True).encode() + _values(path / WEIGHTS)
    return int.from_bytes(hashlib.sha256(computed).digest()[:8], "little")


def _values(file: Path) -> bytes:
    """Digest of a draft's tensors, whatever their order and naming."""
    digest = hashlib.sha256()
    data = np.memmap(file, np.uint8, "r")
    begin = 8 + int(data[:8].view(np.uint64)[0])
    for _, entry in sorted((normalised(name), entry) for name, entry in safetensors_header(file).items()):
        first, last = entry["data_offsets"]
        digest.update(data[begin + first : begin + last].tobytes())
    return digest.digest()


def _eos(folder: Path) -> int:
    config = read_config(folder)
    eos = text_config(config).get("eos_token_id", config.get("eos_token_id"))
    return eos[0] if isinstance(eos, list) else 2 if eos is None else eos
