"""Rotary position embedding in place, and with the write of keys and values into their pages.

`reference.py` says what it means. CUDA takes the Triton kernels (`gpu.py`) where `kernels.selection` has
them on; everything else takes `cpu.py`, plain PyTorch.
"""

from __future__ import annotations

import torch

from kernels import selection
from kernels.rotary import cpu

__all__ = ["rotate_", "rotate_and_store_"]


def rotate_(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Turns pair (x_i, x_{i + d/2}) of each head's first d dimensions by the angle of its row, in place.

    Args:
        x: [rows, heads, head_dim], such as the query and key heads of a packed qkv; the last dimension
            contiguous.
        cos, sin: [rows, 1, d], d even and at most head_dim (less under partial rotation), dtype of x: each
            angle in both halves, the sine of the first half negative.

    Raises:
        ValueError: arguments whose shapes, dtypes or strides do not fit each other.
    """
    _check_angles(x, cos, sin)
    if selection.runs("rotary", x):
        from kernels.rotary import gpu

        gpu.rotate_(x, cos, sin)
    else:
        cpu.rotate_(x, cos, sin)


def rotate_and_store_(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Turns the queries in place, and writes the turned keys and the values to their slots.

    Whether the keys inside qkv are turned as well is left open: they are to be read from the pages.

    Args:
        qkv: [rows, heads + 2 * kv_heads, head_dim], the last two dimensions contiguous.
        cos, sin: as in `rotate_`.
        k_pages, v_pages: [pages, page_size, kv_heads, head_dim], alike in strides, the last dimension
            contiguous.
        slots: int64 [rows], page * page_size + offset; a row with a negative slot is not written.

    Raises:
        ValueError: arguments whose shapes, dtypes or strides do not fit each other.
    """
    _check_angles(qkv, cos, sin)
    if k_pages.dim() != 4 or k_pages.shape[3] != qkv.shape[2] or 2 * k_pages.shape[2] >= qkv.shape[1]:
        raise ValueError(
            f"k_pages has shape {list(k_pages.shape)}; expected [pages, page_size, kv_heads, head_dim] "
            f"of qkv [rows, heads + 2 * kv_heads, head_dim] {list(qkv.shape)}"
        )
    if v_pages.shape != k_pages.shape:
        raise ValueError(f"v_pages has shape {list(v_pages.shape)}; expected {list(k_pages.shape)}")
    if slots.shape != qkv.shape[:1] or slots.dtype != torch.int64:
        raise ValueError(
            f"slots has shape {list(slots.shape)}, {slots.dtype}; expected int64 [{qkv.shape[0]}]"
        )
    if selection.runs("rotary", qkv):
        from kernels.rotary import gpu

        gpu.rotate_and_store_(qkv, cos, sin, k_pages, v_pages, slots)
    else:
        cpu.rotate_and_store_(qkv, cos, sin, k_pages, v_pages, slots)


def _check_angles(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    shape, angles = x.shape, cos.shape
    turned = angles[-1]
    if len(shape) != 3 or angles != (shape[0], 1, turned) or turned % 2 or turned > shape[2]:
        raise ValueError(
            f"cos has shape {list(angles)}; expected [rows, 1, even, at most head_dim] "
            f"of x [rows, heads, head_dim] {list(shape)}"
        )
    if sin.shape != angles:
        raise ValueError(f"sin has shape {list(sin.shape)}; expected {list(angles)}")
