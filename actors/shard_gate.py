"""What a worker checks of a shard before it is committed, and leaves in gates/ beside the shards.

The capture gate (actors/capture_gate.py) reads a few of its samples again; the token gate renders the conversations
that the report shows and asks that what is stored, and marked as the verifier's, is where the chat template puts it.
"""

import asyncio
import json
import time
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from actors.capture_gate import MIN_TOKENS, TOP, CaptureGate, GateFailed, SampleGate
from actors.commit import replace_atomically
from actors.engine import Engine, Message, Sampling
from actors.hf_forward import HfForward
from actors.rollout import Rollout
from actors.shards import ShardMeta, shard_name

BEFORE = 12  # prompt tokens shown ahead of an answer
MAX_TOKENS = 1024  # of a sample read again, where there is such a one: prompt logprobs take V floats a token


@dataclass(frozen=True)
class Turn:
    """One answer of a conversation that the report shows, as text."""

    before: str  # the last prompt tokens
    first: str  # supervised token
    last: str
    tokens: int


@dataclass(frozen=True)
class Shown:
    """A conversation of one source, as it is stored."""

    sample: int
    source: str
    turns: list[Turn]


class ShardGate:
    """`samples` of each shard are read again; `shown` are the numbers of the conversations that the report shows.

    `hf`: another implementation of the verifier to compare with.
    """

    def __init__(
        self,
        verifier: str,
        dtype: str,
        meta: ShardMeta,
        samples: int,
        shown: tuple[int, ...],
        hf: HfForward | None = None,
    ):
        self._hf, self._layers = hf, meta.layers
        self._gate = CaptureGate(verifier, dtype, meta.layers) if samples else None
        self._salt, self._samples, self._shown = meta.config_hash, samples, frozenset(shown)

    def shows(self, sample: int) -> bool:
        return sample in self._shown

    async def inspect(
        self, engine: Engine, kept: list[tuple[int, Rollout]], conversations: dict[int, tuple[str, list[Message]]]
    ) -> dict[str, Any]:
        """What was seen; GateFailed when something must not be trained on.

        `conversations`: source and messages of the samples in `kept` that are shown.
        """
        begin = time.monotonic()
        seen = [await self._read_again(engine, sample, rollout, kept) for sample, rollout in self._chosen(kept)]
        shown = [
            await show(engine, sample, source, messages, rollout)
            for sample, rollout in kept
            if sample in conversations
            for source, messages in [conversations[sample]]
        ]
        return {
            "samples": [one.as_json() for one in seen],
            "shown": [asdict(one) for one in shown],
            "seconds": round(time.monotonic() - begin, 3),
        }

    def _chosen(self, kept: list[tuple[int, Rollout]]) -> list[tuple[int, Rollout]]:
        """By chance that is the same at every run, of those that are neither too short nor long."""
        able = [pair for pair in kept if len(pair[1].token_ids) > MIN_TOKENS]
        fitting = [pair for pair in able if len(pair[1].token_ids) <= MAX_TOKENS]
        able = fitting or sorted(able, key=lambda pair: len(pair[1].token_ids))[: self._samples]
        return sorted(able, key=lambda pair: zlib.crc32(f"{self._salt}/{pair[0]}".encode()))[: self._samples]

    async def _read_again(
        self, engine: Engine, sample: int, rollout: Rollout, kept: list[tuple[int, Rollout]]
    ) -> SampleGate:
        assert self._gate
        ids = rollout.token_ids[:-1].tolist()
        again = await engine.generate(ids, Sampling(max_new_tokens=1), capture=True, prompt_logprobs=TOP)
        assert again.prompt_logprobs is not None and again.hidden_states is not None
        others = [one.states for number, one in kept if number != sample]
        # in threads: these are long products, and the engine's other requests are served by this loop
        hf = await asyncio.to_thread(self._hf.states, ids, self._layers) if self._hf else None
        return await asyncio.to_thread(
            self._gate.judge, sample, rollout.states, again.hidden_states, again.prompt_logprobs, others, hf
        )


async def show(engine: Engine, sample: int, source: str, messages: list[Message], rollout: Rollout) -> Shown:
    """The answers of a conversation as text; GateFailed where they do not stand where the chat template puts them."""
    ids, spans = rollout.token_ids.tolist(), answers(rollout)
    turns: list[Turn] = []
    history: list[Message] = []
    for message in messages:
        history.append(message)
        if message["role"] != "user" or len(turns) == len(spans):
            continue
        begin, end = spans[len(turns)]
        prompt = await engine.render(history)
        if prompt != ids[:begin]:
            at = next((i for i, (a, b) in enumerate(zip(prompt, ids, strict=False)) if a != b), min(len(prompt), begin))
            raise GateFailed(
                f"extract.gate: sample {sample} of {source}: the engine's chat template gives {len(prompt)} tokens "
                f"before answer {len(turns) + 1}, and {begin} are stored, different from token {at} on: "
                f"{await engine.decode(prompt[at : at + 8])!r} against {await engine.decode(ids[at : at + 8])!r}. "
                "Tokenizer or template changed since the answers were generated, or the loss mask is off: remove the "
                "output of the generate step, and look at the verifier's chat_template."
            )
        turns.append(
            Turn(
                before=await _text(engine, ids[max(0, begin - BEFORE) : begin]),
                first=await _text(engine, ids[begin : begin + 1]),
                last=await _text(engine, ids[end - 1 : end]),
                tokens=end - begin,
            )
        )
        history.append({"role": "assistant", "content": await engine.decode(ids[begin : end - 1])})
    return Shown(sample, source, turns)


async def _text(engine: Engine, ids: list[int]) -> str:
    return (await engine.decode(ids)).encode(errors="replace").decode()  # part of a character is no text


def answers(rollout: Rollout) -> list[tuple[int, int]]:
    """First and end token of each run of supervised tokens."""
    spans: list[tuple[int, int]] = []
    for index, marked in enumerate(rollout.loss_mask.tolist()):
        if marked and spans and spans[-1][1] == index:
            spans[-1] = (spans[-1][0], index + 1)
        elif marked:
            spans.append((index, index + 1))
    return spans


def gate_file(out: Path, shard: int, num_shards: int) -> Path:
    return out / "gates" / shard_name(shard, num_shards).replace(".parquet", ".json")


def write_gate(out: Path, shard: int, num_shards: int, seen: dict[str, Any]) -> None:
    file = gate_file(out, shard, num_shards)
    file.parent.mkdir(exist_ok=True)
    replace_atomically(file, json.dumps(seen, ensure_ascii=False))


def read_gates(out: Path, num_shards: int) -> list[dict[str, Any]]:
    """Of the shards that were inspected."""
    files = (gate_file(out, shard, num_shards) for shard in range(num_shards))
    return [json.loads(file.read_text(encoding="utf-8")) for file in files if file.exists()]
