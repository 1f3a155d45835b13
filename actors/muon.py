"""Muon on CPUs without bf16: torch.optim.Muon orthogonalises in bf16, which such CPUs emulate some 20 times slower.

Goes when torch lets the precision be chosen; `tests/actors/test_muon.py` says when.
"""

import torch
from torch import Tensor
from torch.optim import _muon


def orthogonalise_in_fp32() -> None:
    """Make torch.optim.Muon of this process run its Newton-Schulz iterations in fp32."""
    _muon._zeropower_via_newtonschulz = newton_schulz_fp32


def newton_schulz_fp32(grad: Tensor, ns_coefficients: tuple[float, float, float], ns_steps: int, eps: float) -> Tensor:
    """Nearest semi-orthogonal matrix of `grad` [A, B], as torch's own, in fp32."""
    a, b, c = ns_coefficients
    wide = grad.float().T if grad.size(0) > grad.size(1) else grad.float()
    wide = wide / wide.norm().clamp(min=eps)
    for _ in range(ns_steps):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide.T if grad.size(0) > grad.size(1) else wide
