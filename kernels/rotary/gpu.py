"""Rotary position embedding on CUDA: what the kernels need of their arguments, and their launches."""

from __future__ import annotations

import torch

from kernels.rotary.triton_kernels import rotate_and_store_kernel, rotate_kernel

PAIRS_BLOCK = 1024
"""Pairs of a block: 8 a thread of 4 warps, so that both halves are 16-byte loads in bf16."""


def block(half: int) -> tuple[int, int]:
    """(heads, pairs of a head) of a block, both powers of two."""
    pairs = max(8, 1 << (half - 1).bit_length())
    return max(1, PAIRS_BLOCK // pairs), pairs


def rotate_(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """`kernels.rotary.rotate_` in one launch; shapes were checked there."""
    _check((("x", x), ("cos", cos), ("sin", sin)), x)
    rows, heads, _ = x.shape
    half = cos.shape[-1] // 2
    if not rows or not half:
        return
    block_heads, block_half = block(half)
    rotate_kernel[(rows, -(-heads // block_heads))](
        x,
        x.stride(0),
        x.stride(1),
        cos,
        cos.stride(0),
        sin,
        sin.stride(0),
        HEADS=heads,
        HALF=half,
        BLOCK_HEADS=block_heads,
        BLOCK_HALF=block_half,
    )


def rotate_and_store_(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """`kernels.rotary.rotate_and_store_` in one launch; shapes were checked there."""
    named = (("qkv", qkv), ("cos", cos), ("sin", sin), ("k_pages", k_pages), ("v_pages", v_pages))
    _check(named, qkv)
    rows, lines, head_dim = qkv.shape
    if qkv.stride(1) != head_dim:
        raise ValueError(
            f"qkv of shape {list(qkv.shape)} has strides {qkv.stride()}; "
            "expected the last two dimensions contiguous"
        )
    if v_pages.stride() != k_pages.stride():
        raise ValueError(
            f"v_pages of shape {list(v_pages.shape)} has strides {v_pages.stride()}; "
            f"expected k_pages' own, {k_pages.stride()}"
        )
    if slots.device != qkv.device or not slots.is_contiguous():
        raise ValueError(f"slots of shape {list(slots.shape)} must be contiguous on {qkv.device}")
    half = cos.shape[-1] // 2
    if not rows:
        return
    rest = head_dim - 2 * half
    block_heads, block_half = block(half)
    rotate_and_store_kernel[(rows, -(-lines // block_heads))](
        qkv,
        qkv.stride(0),
        cos,
        cos.stride(0),
        sin,
        sin.stride(0),
        k_pages,
        v_pages,
        k_pages.stride(0),
        k_pages.stride(1),
        k_pages.stride(2),
        slots,
        HEADS=lines - 2 * k_pages.shape[2],
        KV=k_pages.shape[2],
        HEAD_DIM=head_dim,
        PAGE=k_pages.shape[1],
        HALF=half,
        BLOCK_HEADS=block_heads,
        BLOCK_HALF=block_half,
        BLOCK_REST=1 << (rest - 1).bit_length() if rest else 0,
    )


def _check(named: tuple[tuple[str, torch.Tensor], ...], x: torch.Tensor) -> None:
    for name, tensor in named:
        shape = list(tensor.shape)
        if tensor.stride(-1) != 1:
            raise ValueError(
                f"{name} of shape {shape} has strides {tensor.stride()}; "
                "expected the last dimension contiguous"
            )
        if tensor.dtype != x.dtype or tensor.device != x.device:
            raise ValueError(
                f"{name} of shape {shape} is {tensor.dtype} on {tensor.device}; "
                f"expected {x.dtype} on {x.device}"
            )
