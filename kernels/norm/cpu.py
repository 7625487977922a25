"""Root-mean-square normalisation in few passes of plain PyTorch, for CPUs and devices without kernels."""

from __future__ import annotations

from functools import cache

import torch
from torch.nn import functional

from kernels import native


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    residual: torch.Tensor | None = None,
    offset: float = 0.0,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """x [rows, hidden] with weight [hidden], or [rows, heads, head_dim] with [heads, head_dim].

    On CPU `torch.nn.functional.rms_norm` is eight passes, with a square of x and a float32 copy of the
    result among them. The norm reduces x without its square; the rest works in place.
    """
    if residual is not None:
        x = residual.add_(x)
    if offset:
        weight = weight.float() + offset
    if _native(x, weight, out):
        return native.rms_norm(x, weight, eps, torch.empty_like(x) if out is None else out)
    if not offset and not x.is_cpu and weight.dim() == 1 and weight.dtype == x.dtype:
        result = functional.rms_norm(x, weight.shape, weight, eps)  # one kernel there
        return result if out is None else out.copy_(result)
    wide = x.float()
    norm = torch.linalg.vector_norm(wide, 2, -1, True)
    scale = torch.addcmul(_scalar(eps, x.device), norm, norm, value=1 / x.shape[-1]).rsqrt_()
    if wide is x:
        return torch.mul(x, scale, out=out).mul_(weight)
    return torch.mul(wide.mul_(scale), weight, out=torch.empty_like(x) if out is None else out)


def _native(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None) -> bool:
    return (
        native.LIBRARY is not None
        and x.dtype == torch.bfloat16
        and x.is_cpu
        and weight.dtype == torch.float32
        and weight.is_contiguous()
        and native.dense_rows(x)
        and (out is None or native.dense_rows(out))
    )


@cache
def _scalar(value: float, device: torch.device) -> torch.Tensor:
    """Made once: creating it costs as much as a pass over a decode batch."""
    return torch.tensor(value, device=device)
