"""Reference implementation of products with quantized weights: the specification of every other one."""

from __future__ import annotations

from typing import Final

import torch

from kernels.quantization.weight import QuantizedWeight

LARGEST_E4M3: Final = 448.0


def linear(
    x: torch.Tensor,
    weight: QuantizedWeight,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return `x W^T + bias + residual` [rows, out] in x's dtype, W = (codes - zeros) * scales; x is [rows,
    in].
    """
    y = x @ weight.dequantize().to(x.dtype).T
    if bias is not None:
        y = y + bias.to(x.dtype)
    return y if residual is None else y + residual.to(x.dtype)


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize x [rows, in] to float8_e4m3fn [rows, in] and scales float32 [rows]; a row's largest becomes
    448.
    """
    wide = x.float()
    most = wide.abs().amax(1)
    scales = torch.where(most > 0, most / LARGEST_E4M3, torch.ones_like(most))
    return (wide / scales[:, None]).to(torch.float8_e4m3fn), scales


def fp8_linear(
    x: torch.Tensor,
    weight: QuantizedWeight,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """`linear` for E4M3 weights: each row of x is first rounded to E4M3 by `quantize_rows`."""
    codes, scales = quantize_rows(x)
    rounded = codes.to(x.dtype) * scales[:, None].to(x.dtype)
    return linear(rounded, weight, bias, residual)
