"""Reference implementation of rotary position embedding: the specification of every other one."""

from __future__ import annotations

import torch


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate each pair (x_i, x_{i + d/2}) of each head's first d dimensions by the angle of its row.

    Args:
        x: [rows, heads, head_dim].
        cos, sin: [rows, 1, d] of the angles, each angle in both halves, the sine of the first half negated.
    """
    size = cos.shape[-1]
    first, second = x[..., :size].chunk(2, dim=-1)
    swapped = torch.cat((second, first), dim=-1)
    return torch.cat((x[..., :size] * cos + swapped * sin, x[..., size:]), dim=-1)


def store(
    k: torch.Tensor, v: torch.Tensor, k_pages: torch.Tensor, v_pages: torch.Tensor, slots: torch.Tensor
) -> None:
    """Store row i of k and v [rows, kv_heads, head_dim] at slot `slots[i]`; negative slots are skipped.

    Args:
        k_pages, v_pages: [pages, page_size, kv_heads, head_dim]; slot s is in page s // page_size.
    """
    page_size = k_pages.shape[1]
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            k_pages[slot // page_size, slot % page_size] = k[row]
            v_pages[slot // page_size, slot % page_size] = v[row]
