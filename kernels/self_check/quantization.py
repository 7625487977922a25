"""Checks of products with quantized weights: every linear layer's shape; one row, few and many."""

from __future__ import annotations

import torch

from kernels.quantization import DeviceMatrix, Fp8Matrix, QuantizedWeight, linear, reference
from kernels.quantization.quantize import MXFP4_GROUP, to_e4m3, to_mxfp4
from kernels.self_check.shapes import ModelShapes, demand

ROWS = (1, 6, 40)
"""Each uses a different kernel or block size."""


def quantization(shapes: ModelShapes, device: torch.device) -> None:
    """Check products with a bias and a residual, for the model's formats that have kernels."""
    dtype = shapes.torch_dtype
    for inner, widths in shapes.linears:
        for group, zeros in shapes.groups:
            if inner % group:
                continue  # such a layer has smaller groups, or is not quantized
            weight = _drawn(sum(widths), inner, group, zeros=zeros)
            name = f"{inner} to {sum(widths)} in groups of {group}"
            _check(name, weight, DeviceMatrix.pack(weight, device), dtype, device)
        if shapes.mxfp4 and inner % MXFP4_GROUP == 0:
            weight = to_mxfp4(torch.randn(sum(widths), inner) * inner**-0.5)
            _check(
                f"{inner} to {sum(widths)} in MXFP4", weight, DeviceMatrix.pack(weight, device), dtype, device
            )
        weight = to_e4m3(torch.randn(sum(widths), inner) * inner**-0.5)
        if shapes.fp8 and Fp8Matrix.serves(weight, device):
            _check(f"{inner} to {sum(widths)} in FP8", weight, Fp8Matrix.pack(weight, device), dtype, device)


def _check(
    name: str,
    weight: QuantizedWeight,
    matrix: DeviceMatrix | Fp8Matrix,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    out, inner = weight.shape
    specified = reference.fp8_linear if weight.coding == "e4m3" else reference.linear
    for rows in ROWS:
        x, residual = torch.randn(rows, inner).to(dtype), torch.randn(rows, out).to(dtype)
        bias = torch.randn(out).to(dtype)
        ours = linear(x.to(device), matrix, bias.to(device), residual.to(device))
        exact = specified(x.double(), weight, bias, residual)
        theirs = specified(x, weight, bias, residual)
        # The scale of rounding errors without cancellation.
        floor = float(((x.double() ** 2) @ (weight.dequantize().double() ** 2).T).max().sqrt())
        demand(f"linear {name}, {rows} rows", ours, theirs, exact, floor + float(exact.abs().max()))


def _drawn(out: int, inner: int, group: int, *, zeros: bool) -> QuantizedWeight:
    lines = (out, inner // group)
    return QuantizedWeight(
        torch.randint(0, 16, (out, inner)).to(torch.uint8),
        ((torch.rand(lines) + 0.5) * 0.2 * inner**-0.5).to(torch.bfloat16),
        torch.randint(0, 16, lines).to(torch.uint8) if zeros else None,
        4,
    )
