"""Gated activations in plain PyTorch, for CPUs and devices without kernels."""

from __future__ import annotations

import torch
from torch.nn import functional

from kernels import native


def gated(
    gate_up: torch.Tensor,
    kind: str,
    *,
    interleaved: bool = False,
    alpha: float = 1.702,
    limit: float = 7.0,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """One pass for the function and one, in place, for the product; `clamped_swiglu` takes seven."""
    if kind == "silu" and not interleaved and _native(gate_up, out):
        rows, width = gate_up.shape
        return native.silu_gated(gate_up, gate_up.new_empty(rows, width // 2) if out is None else out)
    if interleaved:
        gate, up = gate_up[:, ::2], gate_up[:, 1::2]
    else:
        gate, up = gate_up.chunk(2, -1)
    if kind == "silu":
        result = functional.silu(gate).mul_(up)
    elif kind == "gelu_tanh":
        result = functional.gelu(gate, approximate="tanh").mul_(up)
    else:
        result = _clamped_swiglu(gate, up, alpha, limit)
    return result if out is None else out.copy_(result)


def _native(gate_up: torch.Tensor, out: torch.Tensor | None) -> bool:
    return (
        native.LIBRARY is not None
        and gate_up.is_cpu
        and gate_up.dtype == torch.bfloat16
        and gate_up.is_contiguous()
        and (out is None or out.is_contiguous())
    )


def _clamped_swiglu(gate: torch.Tensor, up: torch.Tensor, alpha: float, limit: float) -> torch.Tensor:
    """(up + 1) g sigmoid(alpha g) as (up g s) + g s; `silu(alpha g) = alpha g s` is one fused pass."""
    swish = functional.silu(gate.clamp(max=limit).mul_(alpha), inplace=True).div_(alpha)
    return torch.addcmul(swish, swish, up.clamp(-limit, limit))
