"""The real engine: vLLM's AsyncLLM behind the Engine protocol, on CPU and CUDA.

Imported only inside the actor that holds it, after the environment of `EngineConfig.env` is set: vLLM reads its
environment when it is imported, and its worker processes inherit it.
"""

import asyncio
import os
import tempfile
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import torch
import vllm
from vllm import SamplingParams
from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
    cleanup_hidden_states,
    load_hidden_states,
)
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs import TokensPrompt
from vllm.renderers.params import ChatParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.metrics.reader import Counter, Vector, get_metrics_snapshot

from actors.draft_trace import DraftTrace, read_trace
from actors.engine import (
    Completion,
    EngineDead,
    EngineSpec,
    Message,
    Sampling,
    SpecCounters,
    StatesMismatch,
    TokenLogprobs,
)
from actors.vllm_args import engine_args
from actors.vllm_connector import CAPTURE
from actors.vllm_metrics import ray_stat_loggers

CHAT = {"add_generation_prompt": True, "continue_final_message": False}
COUNTERS = "vllm:spec_decode_num_"


class VllmEngine:
    """Holds a verifier in vLLM, plain, capturing hidden states, or speculating with a draft."""

    def __init__(self, spec: EngineSpec):
        self._spec = spec
        self._transfer = Path(tempfile.mkdtemp(prefix="eyrie-states-", dir=spec.config.transfer_dir))
        args = AsyncEngineArgs(**engine_args(spec, self._transfer))
        self._llm = AsyncLLM.from_engine_args(args, stat_loggers=ray_stat_loggers())

    async def render(self, messages: list[Message]) -> list[int]:
        """Through vLLM's own renderer, with what its server passes for a chat request that asks for nothing more."""
        _, (prompt,) = await self._llm.renderer.render_chat_async([messages], ChatParams(chat_template_kwargs=CHAT))
        return list(prompt["prompt_token_ids"])

    async def decode(self, ids: list[int]) -> str:
        return self._llm.get_tokenizer().decode(ids)

    async def generate(
        self, prompt_ids: list[int], sampling: Sampling, *, capture: bool = False, prompt_logprobs: int = 0
    ) -> Completion:
        assert not capture or self._spec.capture_layers, "this engine was not started to capture"
        params = SamplingParams(
            max_tokens=sampling.max_new_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=sampling.seed,
            ignore_eos=sampling.ignore_eos,
            prompt_logprobs=prompt_logprobs or None,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            extra_args={"kv_transfer_params": CAPTURE} if capture else None,
        )
        final = None
        try:
            prompt = TokensPrompt(prompt_token_ids=prompt_ids)
            async for output in self._llm.generate(prompt, params, request_id=uuid.uuid4().hex):
                final = output
        except EngineDeadError as error:
            raise EngineDead(f"vLLM's engine process died: {error}") from error
        assert final is not None and final.finished
        states = None
        if capture:
            states = await asyncio.to_thread(self._take_states, final)
        answer = final.outputs[0]
        return Completion(
            prompt_ids=list(final.prompt_token_ids),
            output_ids=list(answer.token_ids),
            finish_reason=answer.finish_reason,
            hidden_states=states,
            prompt_logprobs=_logprobs(final.prompt_logprobs) if prompt_logprobs else None,
            accepted=_accepted(answer) if self._spec.draft else None,
        )

    async def trace(self, prompt_ids: list[int], sampling: Sampling) -> tuple[Completion, DraftTrace | None]:
        """Other requests must not run meanwhile: the recorder cannot tell them apart."""
        assert self._spec.draft, "this engine was started without a draft"
        file = self._transfer / f"{uuid.uuid4().hex}.npz"
        try:
            await self._llm.collective_rpc("eyrie_record", args=(True,))
            completion = await self.generate(prompt_ids, sampling)
            await self._llm.collective_rpc("eyrie_save", args=(str(file),))
            ids = [*completion.prompt_ids, *completion.output_ids]
            return completion, read_trace(file, ids, len(prompt_ids))
        finally:
            await self._llm.collective_rpc("eyrie_record", args=(False,))
            file.unlink(missing_ok=True)

    def _take_states(self, final: Any) -> np.ndarray:
        """[T, L, H] bf16 bits of a finished request; checks that they belong to its tokens."""
        path = (final.kv_transfer_params or {}).get("hidden_states_path")
        if path is None:
            raise RuntimeError(f"vLLM returned no hidden states for request {final.request_id}")
        try:
            data = load_hidden_states(path)  # waits for the writer's lock
        except FileNotFoundError as error:
            raise EngineDead(f"vLLM lost the hidden states of a request: {error}") from error
        cleanup_hidden_states(path)
        expected = [*final.prompt_token_ids, *final.outputs[0].token_ids][:-1]
        if data["token_ids"].tolist() != expected:
            raise StatesMismatch(
                f"request {final.request_id}: states belong to {len(data['token_ids'])} tokens that are not the "
                f"{len(expected)} of the request (vllm#44485 with prefix caching?)"
            )
        return data["hidden_states"].to(torch.bfloat16).contiguous().view(torch.uint16).numpy()

    def counters(self) -> SpecCounters:
        values: dict[str, int] = {}
        per_position: tuple[int, ...] = ()
        for metric in get_metrics_snapshot():
            if isinstance(metric, Vector) and metric.name == f"{COUNTERS}accepted_tokens_per_pos":
                per_position = tuple(metric.values)
            elif isinstance(metric, Counter) and metric.name.startswith(COUNTERS):
                values[metric.name.removeprefix(COUNTERS)] = metric.value
        return SpecCounters(
            drafts=values.get("drafts", 0),
            draft_tokens=values.get("draft_tokens", 0),
            accepted=values.get("accepted_tokens", 0),
            accepted_per_position=per_position,
        )

    def describe(self) -> dict[str, Any]:
        return {"engine": "vllm", "version": vllm.__version__, "device": vllm.platforms.current_platform.device_type}

    def close(self) -> None:
        self._llm.shutdown()
        for file in self._transfer.iterdir():
            file.unlink()
        os.rmdir(self._transfer)


def _logprobs(given: Any) -> list[TokenLogprobs]:
    """vLLM's entry i is about token i, and None for the first: ours follows token i."""
    return [{token: one.logprob for token, one in entry.items()} for entry in given[1:]]


def _accepted(answer: Any) -> list[int]:
    """Of each step; an answer of one token has none, and vLLM then no metrics."""
    return list(answer.spec_decode_metrics.per_step_accepted) if answer.spec_decode_metrics else []
