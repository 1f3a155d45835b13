"""The KV connector by which hidden states leave vLLM (loaded inside vLLM's workers by `kv_connector_module_path`).

vLLM 0.32 stores the captured layers of every token in a cache beside the KV cache; when a request ends, the connector
gathers them and writes `<transfer_dir>/<request>.safetensors`. Ours is vLLM's own with two changes: only requests that
ask for it are captured, and the copy works on the CPU platform, where vLLM's uses CUDA streams and pinned memory.
"""

from functools import partial
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
    ExampleHiddenStatesConnector,
    ExampleHiddenStatesConnectorMetadata,
    PendingSave,
    extract_from_kv_cache,
)
from vllm.platforms import current_platform
from vllm.v1.core.sched.output import SchedulerOutput

import actors.vllm_cpu_sampling  # noqa: F401  for its effect in the worker

CAPTURE = {"include_output_tokens": True, "eyrie_capture": True}  # a request's kv_transfer_params


class _Done:
    """A copy that is complete already: the CPU stand-in for a CUDA event."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return None


class EyrieConnector(ExampleHiddenStatesConnector):
    """Writes [T, L, H] states and [T] token ids of the requests that carry CAPTURE; T excludes the last token."""

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        meta = super().build_connector_meta(scheduler_output)
        assert isinstance(meta, ExampleHiddenStatesConnectorMetadata)
        for request in scheduler_output.scheduled_new_reqs:
            if not _wants_capture(request.sampling_params):
                # without a file name the parent's request_finished frees the blocks at once and writes nothing
                self._request_filenames.pop(request.req_id, None)
                meta.new_req_filenames.pop(request.req_id, None)
        return meta

    def _submit_async_write(self, pending: PendingSave) -> None:
        if not current_platform.is_cpu():
            super()._submit_async_write(pending)
            return
        if not self._is_tp_rank_zero:
            return
        block_ids = torch.tensor(pending.block_ids, dtype=torch.long)
        slots = (torch.arange(self._block_size) + block_ids.unsqueeze(1) * self._block_size).flatten()
        # the gather copies: blocks may be reused as soon as this returns
        states = extract_from_kv_cache(self._kv_cache, slots, pending.token_ids.shape[0]).contiguous()
        tensors = {"hidden_states": states, "token_ids": pending.token_ids.clone()}
        lock = self._lock_fds.pop(pending.req_id, None)
        future = self._executor.submit(self._write_tensors, tensors, _Done(), pending.filename, lock)
        self._req_copy_events[pending.req_id] = _Done()
        self._req_futures[pending.req_id] = future
        future.add_done_callback(partial(self._on_write_done, pending.req_id))


def _wants_capture(sampling_params: Any) -> bool:
    extra = (sampling_params.extra_args if sampling_params else None) or {}
    return bool((extra.get("kv_transfer_params") or {}).get("eyrie_capture"))
