"""Products with quantized weights on CPUs by the native loops in bf16, and the weights that they support."""

from __future__ import annotations

import torch

from kernels import native
from kernels.native.matrix import (
    SHIFT,
    NativeMatrix,
    multiply,
    pack_codes,
    pack_lines,
    unpack_codes,
    unpack_lines,
)
from kernels.quantization.weight import E2M1, QuantizedWeight

__all__ = ["multiplies", "multiply", "of_native", "serves", "to_native"]


def multiplies(dtype: torch.dtype) -> bool:
    """Return True if the native loops multiply x of `dtype` with any quantized weight."""
    return native.LIBRARY is not None and dtype == torch.bfloat16


def serves(weight: QuantizedWeight, dtype: torch.dtype) -> bool:
    """Return True if the native loops multiply x of `dtype` with this weight without dequantizing it."""
    if not multiplies(dtype) or weight.coding == "e4m3":
        return False
    whole = 8 if weight.bits == 4 and weight.coding == "whole" else 2
    return weight.group % whole == 0 and (weight.bits == 4 or weight.zeros is None)


def to_native(weight: QuantizedWeight) -> NativeMatrix:
    """Lay a weight out for the loops; 32-bit scales are rounded to bf16, and E2M1 becomes 8 bits.

    Raises:
        ValueError: `serves` is False for it.
    """
    if not serves(weight, torch.bfloat16):
        raise ValueError(f"weights of {weight.bits} bits in groups of {weight.group}: ask `serves` first")
    if weight.coding == "e2m1":
        weight = _doubled(weight)
    scales = weight.scales if weight.scales.dtype == torch.float16 else weight.scales.bfloat16()
    zeros = None if weight.zeros is None else pack_lines((weight.zeros.short() - SHIFT).to(torch.int8))
    out, inner = weight.shape
    return NativeMatrix(
        pack_codes(weight.codes, weight.bits), pack_lines(scales), zeros, weight.bits, out, inner
    )


def _doubled(weight: QuantizedWeight) -> QuantizedWeight:
    """Return an E2M1 weight as whole numbers, which twice its values are, with half the scales: exactly."""
    table = torch.tensor([round(2 * value) for value in (*E2M1, *(-value for value in E2M1))])
    codes = table.to(torch.int8)[weight.codes.int()]
    return QuantizedWeight(codes, weight.scales / 2, None, 8)


def of_native(matrix: NativeMatrix) -> QuantizedWeight:
    """Return the weight that `to_native` laid out, with rounded scales. Raises ValueError for 16 bits."""
    if matrix.scales is None:
        raise ValueError("weights of 16 bits are not quantized")
    zeros = None
    if matrix.zeros is not None:
        zeros = (unpack_lines(matrix.zeros, matrix.columns).short() + SHIFT).to(torch.uint8)
    codes = unpack_codes(matrix.codes, matrix.bits, matrix.columns)
    return QuantizedWeight(codes, unpack_lines(matrix.scales, matrix.columns), zeros, matrix.bits)
