"""Sampling in vLLM 0.32's CPU workers that verify drafts; a capturing engine is one. Imported there for its effect.

`_expand_kernel_impl` (vllm/utils/cpu_triton_utils.py) writes float values to an int64 copy of its output and loses
them: each request's temperature and top_p are then what lay in that memory before (vllm#55005, open). Greedy requests
never get there. tests/engine/test_cpu_sampling.py fails once vLLM's own is right, and this module can go.
"""

import torch
import vllm.v1.sample.rejection_sampler as sampler
from vllm.platforms import current_platform


def expand_batch_to_tokens(
    x: torch.Tensor, cu_num_tokens: torch.Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> torch.Tensor:
    """[num_tokens] values of each request in `x` [batch], once for each of its tokens; `replace_from` is replaced."""
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    expanded = x.repeat_interleave(counts.long(), output_size=num_tokens)
    return expanded.masked_fill(expanded == replace_from, replace_to)


if current_platform.is_cpu():
    sampler.expand_batch_to_tokens = expand_batch_to_tokens
