"""What root-mean-square normalisation means: the specification of every implementation."""

from __future__ import annotations

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float = 0.0) -> torch.Tensor:
    """Each row x of the last dimension becomes x / sqrt(mean(x^2) + eps) * (offset + weight).

    Args:
        x: [rows, hidden] or [rows, heads, head_dim].
        weight: [hidden] or [heads, head_dim].
    """
    mean = x.square().mean(dim=-1, keepdim=True)
    return x / (mean + eps).sqrt() * (offset + weight)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, offset: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """(the new residual, its normalisation); the sum is rounded to the dtype before it is normalised."""
    total = residual + x
    return total, rms_norm(total, weight, eps, offset)
