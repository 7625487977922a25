"""Checks of products with 4-bit weights: every linear layer's shape, one row, few and many."""

from __future__ import annotations

import torch

from kernels.quantization import QuantizedWeight, reference
from kernels.self_check.shapes import ModelShapes, demand

ROWS = (1, 6, 40)
"""Each takes a kernel or a block of its own."""


def quantization(shapes: ModelShapes, device: torch.device) -> None:
    """With a bias and a residual; nothing where no weights have 4 bits."""
    from kernels.quantization import gpu

    dtype = shapes.torch_dtype
    for inner, widths in shapes.linears:
        for group, zeros in shapes.groups:
            if inner % group:
                continue  # such a layer has smaller groups, or is not quantized
            weight = _drawn(sum(widths), inner, group, zeros=zeros)
            matrix = gpu.DeviceMatrix.of(weight, device)
            exact_weight = weight.dequantize()
            for rows in ROWS:
                x, residual = torch.randn(rows, inner).to(dtype), torch.randn(rows, sum(widths)).to(dtype)
                bias = torch.randn(sum(widths)).to(dtype)
                ours = gpu.linear(x.to(device), matrix, bias.to(device), residual.to(device))
                exact = reference.linear(x.double(), weight, bias, residual)
                theirs = reference.linear(x, weight, bias, residual)
                # What sums of the same terms are without luck in cancellation.
                floor = float(((x.double() ** 2) @ (exact_weight.double() ** 2).T).max().sqrt())
                name = f"linear {inner} to {sum(widths)} in groups of {group}, {rows} rows"
                demand(name, ours, theirs, exact, floor + float(exact.abs().max()))


def _drawn(out: int, inner: int, group: int, *, zeros: bool) -> QuantizedWeight:
    lines = (out, inner // group)
    return QuantizedWeight(
        torch.randint(0, 16, (out, inner)).to(torch.uint8),
        ((torch.rand(lines) + 0.5) * 0.2 * inner**-0.5).to(torch.bfloat16),
        torch.randint(0, 16, lines).to(torch.uint8) if zeros else None,
        4,
    )
