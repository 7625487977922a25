"""Root-mean-square normalisation on CUDA: what the kernels need of their arguments, and their launches."""

from __future__ import annotations

import torch

from kernels.norm.triton_kernels import head_rms_norm_kernel, rms_norm_kernel

LARGEST_BLOCK = 8192
"""Elements that a block of 8 warps keeps in registers: 32 a thread."""
HEADS_BLOCK = 2048
"""Elements of a block of heads: 16 a thread of 4 warps, two 16-byte loads in bf16."""


def block_size(hidden: int) -> tuple[int, int]:
    """(elements of a block, warps) for rows of `hidden` elements: at least 8 elements a thread."""
    block = min(LARGEST_BLOCK, max(16, 1 << (hidden - 1).bit_length()))
    return block, max(1, min(8, block // 256))


def head_block(head_dim: int) -> tuple[int, int]:
    """(heads, dimensions) of a block."""
    dims = max(16, 1 << (head_dim - 1).bit_length())
    return max(1, HEADS_BLOCK // dims), dims


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    residual: torch.Tensor | None = None,
    offset: float = 0.0,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """`kernels.norm.rms_norm` in one launch; shapes were checked there."""
    out = x.new_empty(x.shape) if out is None else out
    for name, tensor in (("x", x), ("weight", weight), ("residual", residual), ("out", out)):
        if tensor is not None:
            _check(name, tensor, x)
    if not x.shape[0]:
        return out
    block, warps = block_size(x.shape[1])
    rms_norm_kernel[(x.shape[0],)](
        x,
        x.stride(0),
        x if residual is None else residual,
        0 if residual is None else residual.stride(0),
        weight,
        out,
        out.stride(0),
        eps,
        offset,
        HIDDEN=x.shape[1],
        BLOCK=block,
        RESIDUAL=residual is not None,
        num_warps=warps,
    )
    return out


def head_rms_norm_(x: torch.Tensor, weight: torch.Tensor, eps: float, *, offset: float = 0.0) -> None:
    """`kernels.norm.head_rms_norm_` in one launch; shapes were checked there."""
    _check("x", x, x)
    _check("weight", weight, x)
    if not weight.is_contiguous():
        raise ValueError(
            f"weight of shape {list(weight.shape)} has strides {weight.stride()}; expected contiguous"
        )
    rows, heads, head_dim = x.shape
    if not rows:
        return
    block_heads, block_dim = head_block(head_dim)
    head_rms_norm_kernel[(rows, -(-heads // block_heads))](
        x,
        x.stride(0),
        x.stride(1),
        weight,
        eps,
        offset,
        HEADS=heads,
        HEAD_DIM=head_dim,
        BLOCK_HEADS=block_heads,
        BLOCK_DIM=block_dim,
    )


def _check(name: str, tensor: torch.Tensor, x: torch.Tensor) -> None:
    shape = list(tensor.shape)
    if tensor.stride(-1) != 1:
        raise ValueError(
            f"{name} of shape {shape} has strides {tensor.stride()}; expected the last dimension contiguous"
        )
    allowed = (x.dtype, torch.float32) if name == "weight" else (x.dtype,)
    if tensor.dtype not in allowed or tensor.device != x.device:
        raise ValueError(
            f"{name} of shape {shape} is {tensor.dtype} on {tensor.device}; expected {x.dtype} on {x.device}"
        )
