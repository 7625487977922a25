"""Reference implementation of root-mean-square normalization: the specification of every other one."""

from __future__ import annotations

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float = 0.0) -> torch.Tensor:
    """Return x / sqrt(mean(x^2) + eps) * (offset + weight) for each row x of the last dimension.

    Args:
        x: [rows, hidden] or [rows, heads, head_dim].
        weight: [hidden] or [heads, head_dim].
    """
    mean = x.square().mean(dim=-1, keepdim=True)
    return x / (mean + eps).sqrt() * (offset + weight)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, offset: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (new residual, its normalization); the sum is rounded to the dtype before it is normalized."""
    total = residual + x
    return total, rms_norm(total, weight, eps, offset)
