"""Paged attention on CUDA: checks the arguments and launches the kernels of a plan."""

from __future__ import annotations

import torch

from kernels.attention.plan import AttentionPlan, block_rows
from kernels.attention.triton_kernels import attention_kernel, combine_kernel

LARGEST_HEAD = 256


def keys_per_step(block_dim: int, element_size: int) -> int:
    """Keys that a block takes at a time: 8 KB of them, at least 16 as a tensor core tile has."""
    return max(16, min(64, 8192 // (block_dim * element_size)))


def attend(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    block_table: torch.Tensor,
    plan: AttentionPlan,
    *,
    scale: float,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """`reference.attend` for the batch of `plan`; same shapes.

    Args:
        q: [queries, heads, head_dim], the last two dimensions contiguous.
        k_pages, v_pages: [pages, page_size, kv_heads, head_dim], alike in strides and the last two
            dimensions contiguous.
        block_table: int32 [sequences, most pages].
    """
    _check(q, k_pages, v_pages, block_table, plan, sinks)
    rows, heads, head_dim = q.shape
    out = torch.empty_like(q)
    if not rows:
        return out
    kv_heads = k_pages.shape[2]
    block_dim = max(16, 1 << (head_dim - 1).bit_length())
    partial = torch.empty((rows, heads, plan.splits, head_dim), dtype=torch.float32, device=q.device)
    peak, total = torch.empty((2, rows, heads, plan.splits), dtype=torch.float32, device=q.device)
    attention_kernel[(plan.items.shape[0], kv_heads)](
        plan.items,
        q,
        q.stride(0),
        k_pages,
        v_pages,
        k_pages.stride(0),
        k_pages.stride(1),
        block_table,
        block_table.stride(0),
        partial,
        peak,
        total,
        scale,
        plan.window,
        plan.splits,
        HEADS=heads,
        GROUP=heads // kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_DIM=block_dim,
        PAGE=k_pages.shape[1],
        ROWS=max(block_rows(plan.tokens * (heads // kv_heads)), 1 << (heads // kv_heads - 1).bit_length()),
        KEYS=keys_per_step(block_dim, q.element_size()),
    )
    combine_kernel[(rows, heads)](
        out,
        out.stride(0),
        partial,
        peak,
        total,
        peak if sinks is None else sinks,
        plan.splits,
        HEADS=heads,
        HEAD_DIM=head_dim,
        BLOCK_DIM=block_dim,
        SINKS=sinks is not None,
    )
    return out


def _check(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    block_table: torch.Tensor,
    plan: AttentionPlan,
    sinks: torch.Tensor | None,
) -> None:
    if q.dim() != 3 or q.shape[0] != plan.rows or q.shape[2] > LARGEST_HEAD or not q[:1].is_contiguous():
        expected = f"[{plan.rows}, heads, head_dim up to {LARGEST_HEAD}], last two dimensions contiguous"
        raise ValueError(f"q has shape {list(q.shape)}; expected {expected}")
    for name, pages in (("k_pages", k_pages), ("v_pages", v_pages)):
        if pages.dim() != 4 or pages.shape[3] != q.shape[2] or q.shape[1] % pages.shape[2]:
            expected = f"[pages, page_size, a divisor of {q.shape[1]}, {q.shape[2]}]"
            raise ValueError(f"{name} has shape {list(pages.shape)}; expected {expected}")
        if pages.stride() != k_pages.stride() or not pages[:1, :1].is_contiguous():
            raise ValueError(
                f"{name} of shape {list(pages.shape)} has strides {pages.stride()}; "
                "expected k_pages' own, last two dimensions contiguous"
            )
        if pages.dtype != q.dtype:
            raise ValueError(f"{name} of shape {list(pages.shape)} is {pages.dtype}; expected {q.dtype}")
    if block_table.dim() != 2 or block_table.dtype != torch.int32 or block_table.stride(1) != 1:
        raise ValueError(
            f"block_table has shape {list(block_table.shape)}, {block_table.dtype}; "
            "expected int32 [sequences, most pages]"
        )
    if sinks is not None and sinks.shape != q.shape[1:2]:
        raise ValueError(f"sinks has shape {list(sinks.shape)}; expected [{q.shape[1]}]")
