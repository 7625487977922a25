"""Root-mean-square normalisation (Zhang and Sennrich, 2019) of rows, and of heads."""

from __future__ import annotations

import torch

from kernels.norm import head_rms_norm_, rms_norm


class RMSNorm:
    """x / rms(x) * weight, computed in fp32."""

    def __init__(self, weight: torch.Tensor, eps: float, *, offset: float = 0.0) -> None:
        """`offset` is 1 where checkpoints store the gain less one (Gemma)."""
        self._weight, self._eps = _gain(weight, offset), eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] -> the same shape and dtype."""
        return rms_norm(x, self._weight, self._eps)


class HeadNorm:
    """Each query head and each key head by itself, before rotation (Henry et al., 2020)."""

    def __init__(self, weight: torch.Tensor, eps: float, *, offset: float = 0.0) -> None:
        """Takes [heads, head_dim]: a line for each query head, then for each key head."""
        self._weight, self._eps = _gain(weight, offset), eps

    def __call__(self, x: torch.Tensor) -> None:
        """Normalises [rows, query heads + key heads, head_dim] in place."""
        head_rms_norm_(x, self._weight, self._eps)


def _gain(weight: torch.Tensor, offset: float) -> torch.Tensor:
    """Added once, in fp32. The CPU path also multiplies in fp32: converted once, not in every call."""
    if offset:
        return weight.float() + offset
    return weight.float() if weight.device.type == "cpu" else weight
