"""Root-mean-square normalisation (Zhang and Sennrich, 2019)."""

from __future__ import annotations

import torch

from kernels.norm import rms_norm


class RMSNorm:
    """x / rms(x) * weight, computed in fp32."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        # The CPU path multiplies in fp32: converted here once, not in every call.
        self._weight = weight.float() if weight.device.type == "cpu" else weight
        self._eps = eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] -> the same shape and dtype."""
        return rms_norm(x, self._weight, self._eps)
