"""Rounds inputs one after another and compensates each error in the inputs not yet rounded.

GPTQ (Frantar et al., 2022, arXiv:2210.17323): with H the mean of x x^T over calibration rows, the change of
the later weights that costs the output least follows from the inverse of H. It changes weights, not their
storage format, so it combines with AWQ's scales and clipped ranges.
"""

from __future__ import annotations

from typing import Final

import torch

from kernels.quantization import QuantizedWeight
from kernels.quantization.quantize import grid

_DAMPING: Final = 0.01
"""Fraction of the mean diagonal added to it, for inputs that no calibration row distinguishes."""
_TRUST: Final = 0.9
"""Factor of off-diagonal entries of H: how far correlations in calibration rows hold for other rows."""


def compensated(
    weight: torch.Tensor,
    second: torch.Tensor,
    *,
    group: int,
    shrink: torch.Tensor,
    bits: int = 4,
    dtype: torch.dtype = torch.bfloat16,
) -> QuantizedWeight:
    """Quantize to 3 or 4 bits with zeros, and scales of `dtype`.

    Args:
        weight: float32 [out, in].
        second: H of its inputs, [in, in].
        shrink: [out, groups], the fraction of each group's range that its grid spans.
    """
    out, inner = weight.shape
    remaining, factor = weight.clone(), _factor(second)
    codes = torch.empty(out, inner, dtype=torch.uint8)
    scales, zeros = torch.empty(out, inner // group), torch.empty(out, inner // group)
    for number, start in enumerate(range(0, inner, group)):
        end = start + group
        block, errors = remaining[:, start:end], torch.empty(out, group)
        scale, zero = grid(block, shrink[:, number], bits=bits, dtype=dtype)
        for place in range(group):
            column, index = block[:, place], start + place
            code = torch.round(column / scale).add_(zero).clamp_(0, 2**bits - 1)
            error = (column - (code - zero) * scale) / factor[index, index]
            block[:, place + 1 :].addr_(error, factor[index, index + 1 : end], alpha=-1.0)
            codes[:, index], errors[:, place] = code.to(torch.uint8), error
        remaining[:, end:].addmm_(errors, factor[start:end, end:], alpha=-1.0)
        scales[:, number], zeros[:, number] = scale, zero
    return QuantizedWeight(codes, scales.to(dtype), zeros.to(torch.uint8), 4)


def _factor(second: torch.Tensor) -> torch.Tensor:
    """Return the upper Cholesky factor of the inverse of damped H."""
    damped = second.double() * _TRUST
    own = second.diagonal().double()
    damped.diagonal().copy_(own + (_DAMPING * own.mean()).clamp(min=1e-12))
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    factor: torch.Tensor = torch.linalg.cholesky(inverse, upper=True)
    return factor.float()
