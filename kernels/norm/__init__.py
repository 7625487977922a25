"""Root-mean-square normalisation of rows and of heads.

`reference.py` says what it means. CUDA takes the Triton kernels (`gpu.py`) where `kernels.selection` has
them on; everything else takes `cpu.py`, few passes of plain PyTorch.
"""

from __future__ import annotations

import torch

from kernels import selection
from kernels.norm import cpu

__all__ = ["head_rms_norm_", "rms_norm"]


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    residual: torch.Tensor | None = None,
    offset: float = 0.0,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * (offset + weight), computed in float32.

    Args:
        x: [rows, hidden], the last dimension contiguous.
        weight: [hidden], dtype of x or float32; on CPU, float32 saves a conversion per call.
        residual: [rows, hidden] like x; x is added to it in place, and the sum is what is normalised.
        offset: 1.0 for Gemma, whose checkpoints store the gain less one.
        out: where to write, like x, or x itself; allocated when None.

    Returns:
        [rows, hidden], dtype of x.

    Raises:
        ValueError: arguments whose shapes, dtypes or strides do not fit each other.
    """
    if x.dim() != 2 or weight.shape != x.shape[1:]:
        raise ValueError(
            f"weight has shape {list(weight.shape)}; expected [hidden] of x [rows, hidden] {list(x.shape)}"
        )
    if residual is not None:
        _check_like(x, "residual", residual)
    if out is not None:
        _check_like(x, "out", out)
    if selection.runs("norm", x):
        from kernels.norm import gpu

        return gpu.rms_norm(x, weight, eps, residual=residual, offset=offset, out=out)
    return cpu.rms_norm(x, weight, eps, residual=residual, offset=offset, out=out)


def head_rms_norm_(x: torch.Tensor, weight: torch.Tensor, eps: float, *, offset: float = 0.0) -> None:
    """Normalises every head of x in place, as Qwen3 and Gemma 3 do with queries and keys before rotation.

    Args:
        x: [rows, heads, head_dim], such as the query and key heads of a packed qkv; the last dimension
            contiguous.
        weight: [heads, head_dim], dtype of x or float32: one line per head, so that queries and keys with
            different gains take one call.

    Raises:
        ValueError: arguments whose shapes, dtypes or strides do not fit each other.
    """
    if x.dim() != 3 or weight.shape != x.shape[1:]:
        raise ValueError(
            f"weight has shape {list(weight.shape)}; "
            f"expected [heads, head_dim] of x [rows, heads, head_dim] {list(x.shape)}"
        )
    if selection.runs("norm", x):
        from kernels.norm import gpu

        gpu.head_rms_norm_(x, weight, eps, offset=offset)
    else:
        cpu.rms_norm(x, weight, eps, offset=offset, out=x)


def _check_like(x: torch.Tensor, name: str, tensor: torch.Tensor) -> None:
    if tensor.shape != x.shape or tensor.dtype != x.dtype:
        raise ValueError(
            f"{name} has shape {list(tensor.shape)}, {tensor.dtype}; expected {list(x.shape)}, {x.dtype}"
        )
