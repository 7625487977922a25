"""Rounding one input after another, each one's error made up for by those that are still to be rounded.

GPTQ (Frantar et al., 2022, arXiv:2210.17323): with H the mean of x x^T over calibration rows, the change of
the later weights that costs the output least follows from the inverse of H. It moves weights, not the form
that they are stored in, so it goes with AWQ's scales and clipped ranges.
"""

from __future__ import annotations

from typing import Final

import torch

from kernels.quantization import QuantizedWeight
from kernels.quantization.quantize import grid

_DAMPING: Final = 0.01
"""Of the mean diagonal, added to it: inputs that calibration rows never moved apart."""
_TRUST: Final = 0.9
"""How much of what calibration rows say of two inputs together is believed of other rows."""


def compensated(
    weight: torch.Tensor, second: torch.Tensor, *, group: int, shrink: torch.Tensor
) -> QuantizedWeight:
    """4 bits with zeros.

    Args:
        weight: float32 [out, in].
        second: H of its inputs, [in, in].
        shrink: [out, groups], what part of each group's range its grid spans.
    """
    out, inner = weight.shape
    left, factor = weight.clone(), _factor(second)
    codes = torch.empty(out, inner, dtype=torch.uint8)
    scales, zeros = torch.empty(out, inner // group), torch.empty(out, inner // group)
    for number, start in enumerate(range(0, inner, group)):
        end = start + group
        block, errors = left[:, start:end], torch.empty(out, group)
        scale, zero = grid(block, shrink[:, number])
        for place in range(group):
            column, at = block[:, place], start + place
            code = torch.round(column / scale).add_(zero).clamp_(0, 15)
            error = (column - (code - zero) * scale) / factor[at, at]
            block[:, place + 1 :].addr_(error, factor[at, at + 1 : end], alpha=-1.0)
            codes[:, at], errors[:, place] = code.to(torch.uint8), error
        left[:, end:].addmm_(errors, factor[start:end, end:], alpha=-1.0)
        scales[:, number], zeros[:, number] = scale, zero
    return QuantizedWeight(codes, scales.to(torch.bfloat16), zeros.to(torch.uint8), 4)


def _factor(second: torch.Tensor) -> torch.Tensor:
    """The upper Cholesky factor of H's inverse; what no row has ever moved stands alone."""
    damped = second.double() * _TRUST
    own = second.diagonal().double()
    damped.diagonal().copy_(own + (_DAMPING * own.mean()).clamp(min=1e-12))
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    factor: torch.Tensor = torch.linalg.cholesky(inverse, upper=True)
    return factor.float()
