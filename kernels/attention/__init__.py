"""Attention over paged keys and values: decode rows, prefill chunks and both in one batch.

`attend` is the public operation, `AttentionPlan` what it must know of a step. `reference.py` says what it
means; `gpu.py` launches the Triton kernels where `kernels.selection` has them on, `cpu.py` (plain PyTorch)
serves everything else.
"""

from __future__ import annotations

from typing import Final

import torch

from kernels import selection
from kernels.attention import cpu
from kernels.attention.plan import AttentionPlan, whole_pages

__all__ = ["AttentionPlan", "attend"]

LARGEST_HEAD: Final = 256


def attend(
    q: torch.Tensor,
    kv_pages: torch.Tensor,
    plan: AttentionPlan,
    *,
    scale: float,
    window: int = 0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention of each sequence's newest tokens over all of its tokens, themselves included.

    Only slots that hold a sequence's own tokens are read for it: what lies in other pages, or behind its
    last token, does not matter, be it NaN.

    Args:
        q: [plan.rows, heads, head_dim up to 256], rows in the order of the plan's sequences.
        kv_pages: [2 (keys, then values), kv_heads, pages, page_size, head_dim], dtype and device of q; a
            kv head serves heads / kv_heads heads. The new tokens are written already. The kernels take any
            view whose last two dimensions are contiguous, such as part of a pool that holds more than one
            layer's keys, where it lies; elsewhere the pages that the step reads are copied out of it.
        scale: what scores are multiplied with.
        window: how many tokens back a query sees, itself included; 0 for all.
        sinks: [heads], a logit that takes part in the softmax and adds nothing (GPT-OSS).

    Returns:
        [rows, heads, head_dim]. Scores and softmax are float32 also where q is not.

    Raises:
        ValueError: an argument whose shape, dtype or device does not fit the others.
    """
    _check(q, kv_pages, plan, window, sinks)
    if plan.graph is not None:
        return plan.graph.attend(q, kv_pages, scale=scale, window=window, sinks=sinks)
    if selection.runs("attention", q):
        from kernels.attention import gpu

        return gpu.attend(q, kv_pages, plan, scale=scale, window=window, sinks=sinks)
    return cpu.attend(q, kv_pages, plan, scale=scale, window=window, sinks=sinks)


def _check(
    q: torch.Tensor, kv_pages: torch.Tensor, plan: AttentionPlan, window: int, sinks: torch.Tensor | None
) -> None:
    def refuse(name: str, value: torch.Tensor, expected: str) -> ValueError:
        return ValueError(
            f"{name} has shape {list(value.shape)}, {value.dtype} on {value.device}; expected {expected}"
        )

    if q.dim() != 3 or q.shape[0] != plan.rows or not 1 <= q.shape[2] <= LARGEST_HEAD or q.stride(2) != 1:
        size = f"[{plan.rows}, heads, head_dim up to {LARGEST_HEAD}]"
        raise refuse("q", q, f"{size}, its last dimension contiguous")
    fits = (
        kv_pages.dim() == 5 and kv_pages.shape[0] == 2 and kv_pages.shape[3:] == (plan.page_size, q.shape[2])
    )
    if not fits or not kv_pages.shape[1] or q.shape[1] % kv_pages.shape[1]:
        size = f"[2, a divisor of {q.shape[1]}, pages, {plan.page_size}, {q.shape[2]}]"
        raise refuse("kv_pages", kv_pages, size)
    if kv_pages.dtype != q.dtype or kv_pages.device != q.device:
        raise refuse("kv_pages", kv_pages, f"{q.dtype} on {q.device}")
    if not whole_pages(kv_pages):
        raise ValueError(
            f"kv_pages has shape {list(kv_pages.shape)} and strides {kv_pages.stride()}; expected "
            "the last two dimensions contiguous"
        )
    if window < 0:
        raise ValueError(f"window is {window}; expected at least 1, or 0 for none")
    if sinks is not None and (sinks.shape != q.shape[1:2] or sinks.device != q.device):
        raise refuse("sinks", sinks, f"[{q.shape[1]}] on {q.device}")
