"""What products with quantized weights mean: the specification of every implementation."""

from __future__ import annotations

import torch

from kernels.quantization.weight import QuantizedWeight


def linear(
    x: torch.Tensor,
    weight: QuantizedWeight,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """x [rows, in] -> `x W^T + bias + residual` [rows, out] in x's dtype, W = (codes - zeros) * scales."""
    y = x @ weight.dequantize().to(x.dtype).T
    if bias is not None:
        y = y + bias.to(x.dtype)
    return y if residual is None else y + residual.to(x.dtype)
