"""Newton-Schulz in fp32 computes what torch's own does in bf16, for as long as torch leaves no choice."""

import inspect
from collections.abc import Iterator

import pytest
import torch
from torch.optim import _muon

from actors.muon import newton_schulz_fp32, orthogonalise_in_fp32

COEFFICIENTS = (_muon.DEFAULT_A, _muon.DEFAULT_B, _muon.DEFAULT_C)
TORCHS_OWN = _muon._zeropower_via_newtonschulz


@pytest.fixture
def restored() -> Iterator[None]:
    yield
    _muon._zeropower_via_newtonschulz = TORCHS_OWN


def matrix(rows: int, columns: int) -> torch.Tensor:
    """As gradients are: singular values over some orders of magnitude, and small."""
    generator = torch.Generator().manual_seed(rows + columns)
    left = torch.linalg.qr(torch.randn(rows, min(rows, columns), generator=generator))[0]
    right = torch.linalg.qr(torch.randn(columns, min(rows, columns), generator=generator))[0]
    return 1e-4 * (left * torch.logspace(0, -1, min(rows, columns))) @ right.T


@pytest.mark.parametrize(("rows", "columns"), [(96, 32), (32, 96), (64, 64), (1, 16)])
def test_it_agrees_with_torchs_own_within_bf16(rows: int, columns: int) -> None:
    grad = matrix(rows, columns)
    before = grad.clone()
    ours = newton_schulz_fp32(grad, COEFFICIENTS, 5, _muon.EPS)
    theirs = TORCHS_OWN(grad, COEFFICIENTS, 5, _muon.EPS).float()
    assert ours.dtype == torch.float32 and ours.shape == grad.shape and torch.equal(grad, before)
    assert (ours - theirs).norm() < 0.04 * theirs.norm()  # bf16 has 8 bits, and errors grow over five iterations
    assert torch.linalg.svdvals(ours).sub(1).abs().max() < 0.5  # nearly orthogonal


def test_the_optimizer_uses_it(restored: None) -> None:
    def stepped() -> torch.Tensor:
        weight = torch.nn.Parameter(torch.zeros(48, 32))
        weight.grad = matrix(48, 32)
        torch.optim.Muon([weight], lr=1.0, weight_decay=0.0, momentum=0.0, nesterov=False).step()
        return weight.detach()

    theirs = stepped()
    orthogonalise_in_fp32()
    ours = stepped()
    exact = -newton_schulz_fp32(matrix(48, 32), COEFFICIENTS, 5, _muon.EPS)
    exact *= ours.norm() / exact.norm()  # the learning rate's adjustment to the shape
    assert torch.allclose(ours, exact, atol=1e-5)
    assert not torch.allclose(theirs, exact, atol=1e-5)  # or there is nothing left to replace


def test_torch_still_leaves_no_choice_of_precision() -> None:
    """When this fails, delete actors/muon.py and ask torch.optim.Muon for fp32."""
    assert "grad.bfloat16()" in inspect.getsource(TORCHS_OWN)
    assert not [name for name in inspect.signature(torch.optim.Muon).parameters if "dtype" in name or "prec" in name]
