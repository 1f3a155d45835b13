"""What a CPU engine draws each token with (vllm#55005), and that our mending is still needed."""

import pytest
import torch

pytestmark = pytest.mark.vllm

CUMULATIVE = torch.tensor([1, 1, 4], dtype=torch.int32)  # of a request with one token, one with none, one with three


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (torch.tensor([0.7, 0.2, 1.5]), [0.7, 1.5, 1.5, 1.5]),  # temperatures
        (torch.tensor([0.0, 0.2, 0.5]), [1.0, 0.5, 0.5, 0.5]),  # a greedy request among them: 0 is replaced by 1
        (torch.tensor([50, 3, 20], dtype=torch.int32), [50, 20, 20, 20]),  # top_k
    ],
)
def test_each_token_gets_its_requests_value_and_vllms_own_kernel_still_does_not_give_it(
    values: torch.Tensor, wanted: list[float]
) -> None:
    import vllm.v1.sample.rejection_sampler as sampler
    from vllm.utils.cpu_triton_utils import _expand_kernel_impl

    import actors.vllm_cpu_sampling  # noqa: F401

    found = sampler.expand_batch_to_tokens(values, CUMULATIVE, 4, replace_from=0, replace_to=1)
    assert found.dtype == values.dtype and found.tolist() == pytest.approx(wanted)
    own = torch.full((4,), -1, dtype=values.dtype)
    _expand_kernel_impl(own, values, CUMULATIVE, 0, 1)
    assert own.tolist() != pytest.approx(wanted), "vllm#55005 is mended: remove actors/vllm_cpu_sampling.py"
