"""Products with weights of 4 or 8 bits, which are dequantized where they are multiplied.

`reference.py` says what they mean, `formats.py` how checkpoints pack them. Weights are laid out once for the
device (`prepare`); README.md tells what was measured.
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
    "GROUPS", "DeviceMatrix", "Fp8Matrix", "Matrix", "NativeMatrix", "QuantizedWeight", "linear",
    "multiplies", "prepare",
]  # fmt: skip

Matrix = NativeMatrix | DeviceMatrix | Fp8Matrix
"""Weights that are laid out for what multiplies them."""
CPU: Final = torch.device("cpu")


def multiplies(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether any quantized weights are multiplied as they are with x of `dtype` on this device."""
    return selection.runs_on("quantization", device) or (device.type == "cpu" and cpu.multiplies(dtype))


def prepare(weight: QuantizedWeight, dtype: torch.dtype, device: torch.device = CPU) -> Matrix | None:
    """Laid out for products with x of `dtype` there; None where only whole weights are multiplied."""
    if selection.runs_on("quantization", device):
        if Fp8Matrix.serves(weight, device):
            return Fp8Matrix.of(weight, device)
        return DeviceMatrix.of(weight, device) if DeviceMatrix.serves(weight) else None
    return cpu.to_native(weight) if device.type == "cpu" and cpu.serves(weight, dtype) else None


def linear(
    x: torch.Tensor,
    weight: Matrix | QuantizedWeight,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """`x W^T + bias + residual`, rounded once; x itself is rounded to 8 bits beforehand for an `Fp8Matrix`.

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
    if isinstance(weight, DeviceMatrix):
        from kernels.quantization import gpu

        return gpu.linear(x, weight, bias, residual)
    if isinstance(weight, Fp8Matrix):
        from kernels.quantization import fp8

        return fp8.linear(x, weight, bias, residual)
    if x.dim() != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(f"x has shape {list(x.shape)}; expected [rows, {weight.shape[1]}]")
    return reference.linear(x, weight, bias, residual)
