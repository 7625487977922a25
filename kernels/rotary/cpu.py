"""Rotary position embedding in plain PyTorch, for CPUs and devices without kernels."""

from __future__ import annotations

import torch

from kernels import native


def rotate_(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """In place: one copy with the halves swapped, one product, one sum of products."""
    turned = cos.shape[-1]
    if (
        native.LIBRARY is not None
        and x.is_cpu
        and x.dtype == cos.dtype == sin.dtype == torch.bfloat16
        and native.dense_rows(x)
        and cos.is_contiguous()
        and sin.is_contiguous()
    ):
        native.rotate_(x, cos, sin)
        return
    if turned != x.shape[-1]:
        x = x[..., :turned]
    swapped = torch.roll(x, turned // 2, -1)
    x.mul_(cos).addcmul_(swapped, sin)


def rotate_and_store_(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Rotates queries and keys together, then writes keys and values."""
    kv_heads, page_size = k_pages.shape[2], k_pages.shape[1]
    heads = qkv.shape[1] - 2 * kv_heads
    rotate_(qkv[:, : heads + kv_heads], cos, sin)
    rows = torch.nonzero(slots >= 0).squeeze(1)
    places = (slots[rows] // page_size, slots[rows] % page_size)
    k_pages[places] = qkv[rows, heads : heads + kv_heads]
    v_pages[places] = qkv[rows, heads + kv_heads :]
