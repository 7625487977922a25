"""Products with weights of 4 or 8 bits, which are dequantized where they are multiplied.

`reference.py` says what they mean, `formats.py` how checkpoints pack them. Weights are laid out once for the
device (`prepare`); README.md tells what was measured.
"""

from __future__ import annotations

from typing import Final

import torch

from kernels.native.matrix import NativeMatrix
from kernels.quantization import cpu, reference
from kernels.quantization.weight import QuantizedWeight

__all__ = ["GROUPS", "NativeMatrix", "QuantizedWeight", "linear", "prepare"]

GROUPS: Final = (32, 64, 128)
"""Inputs that share a scale, of 4 bits; of 8 bits all of a channel's do."""


def prepare(weight: QuantizedWeight, dtype: torch.dtype) -> NativeMatrix | None:
    """Laid out for products with x of `dtype` on this CPU; None where only whole weights are multiplied."""
    return cpu.to_native(weight) if cpu.serves(weight, dtype) else None


def linear(
    x: torch.Tensor,
    weight: NativeMatrix | QuantizedWeight,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """`x W^T + bias + residual`, rounded once.

    Args:
        x: [rows, in], last dimension contiguous; bf16 for a `NativeMatrix`.
        bias: [out]. residual: [rows, out], contiguous. Both in x's dtype.

    Returns:
        [rows, out], dtype of x.

    Raises:
        ValueError: arguments that do not fit each other.
    """
    if isinstance(weight, NativeMatrix):
        return cpu.multiply(x, weight, bias, residual)
    if x.dim() != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(f"x has shape {list(x.shape)}; expected [rows, {weight.shape[1]}]")
    return reference.linear(x, weight, bias, residual)
