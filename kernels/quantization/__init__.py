"""Products with 4-bit or 8-bit weights, which are dequantized inside the kernels.

`reference.py` specifies them, `formats.py` has the packing formats of checkpoints. `prepare` lays weights out
once for the device. README.md has the measurements.
"""

from __future__ import annotations

from typing import Final

import torch

from kernels import selection
from kernels.native.matrix import NativeMatrix
from kernels.quantization import cpu, reference
from kernels.quantization.device_matrix import GROUPS, DeviceMatrix
from kernels.quantization.fp8_matrix import Fp8Matrix
from kernels.quantization.weight import QuantizedWeight

__all__ = [
    "GROUPS",
    "DeviceMatrix",
    "Fp8Matrix",
    "Matrix",
    "NativeMatrix",
    "QuantizedWeight",
    "linear",
    "multiplies",
    "prepare",
]

Matrix = NativeMatrix | DeviceMatrix | Fp8Matrix
"""Weights in the layout of the kernels that multiply them."""
CPU: Final = torch.device("cpu")


def multiplies(dtype: torch.dtype, device: torch.device) -> bool:
    """Return True if any quantized weights are multiplied directly with x of `dtype` on this device."""
    return selection.runs_on("quantization", device) or (device.type == "cpu" and cpu.multiplies(dtype))


def prepare(weight: QuantizedWeight, dtype: torch.dtype, device: torch.device = CPU) -> Matrix | None:
    """Lay a weight out for products with x of `dtype`; None if it must be dequantized instead."""
    if selection.runs_on("quantization", device):
        if Fp8Matrix.serves(weight, device):
            return Fp8Matrix.pack(weight, device)
        return DeviceMatrix.pack(weight, device) if DeviceMatrix.serves(weight) else None
    return cpu.to_native(weight) if device.type == "cpu" and cpu.serves(weight, dtype) else None


def linear(
    x: torch.Tensor,
    weight: Matrix | QuantizedWeight,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return `x W^T + bias + residual`, rounded once; for an `Fp8Matrix`, x is first rounded to 8 bits.

    Args:
        x: [rows, in], last dimension contiguous; bf16 for a `NativeMatrix`.
        bias: [out]. residual: [rows, out], contiguous. Both in x's dtype.

    Returns:
        [rows, out], dtype of x.

    Raises:
        ValueError: mismatching arguments.
    """
    if isinstance(weight, NativeMatrix):
        return cpu.multiply(x, weight, bias, residual)
    if isinstance(weight, DeviceMatrix):
        from kernels.quantization import gpu

        return gpu.linear(x, weight, bias, residual)
    if isinstance(weight, Fp8Matrix):
        from kernels.quantization import fp8

        return fp8.linear(x, weight, bias, residual)
    if x.dim() != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(f"x has shape {list(x.shape)}; expected [rows, {weight.shape[1]}]")
    return reference.linear(x, weight, bias, residual)
