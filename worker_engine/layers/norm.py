"""Root-mean-square normalisation (Zhang and Sennrich, 2019)."""

from __future__ import annotations

import torch
from torch.nn.functional import rms_norm


class RMSNorm:
    """x / rms(x) * weight, the mean taken in fp32."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self._weight, self._eps, self._shape = weight, eps, (weight.shape[0],)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] -> the same shape and dtype."""
        return rms_norm(x, self._shape, self._weight, self._eps)
