"""Root-mean-square normalisation (Zhang and Sennrich, 2019) of rows, and of heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from kernels.norm import head_rms_norm_, rms_norm

OwnNorms = Mapping[str, Sequence[tuple[torch.Tensor, torch.Tensor]]]
"""A norm's path -> (rows int64, weight [hidden] as checkpoints store it) of adapters with their own."""


class RMSNorm:
    """x / rms(x) * weight, computed in fp32."""

    def __init__(self, weight: torch.Tensor, eps: float, *, offset: float = 0.0, path: str = "") -> None:
        """`offset` is 1 where checkpoints store the gain less one (Gemma); `path` is the module's."""
        self.gain, self.eps = _gain(weight, offset), eps
        self._offset, self._path = offset, path

    def __call__(self, x: torch.Tensor, own: OwnNorms | None = None) -> torch.Tensor:
        """[rows, hidden] -> the same shape and dtype."""
        y = rms_norm(x, self.gain, self.eps)
        for rows, weight in own.get(self._path, ()) if own else ():
            y[rows] = rms_norm(x[rows], _gain(weight, self._offset), self.eps)
        return y


class HeadNorm:
    """Each query head and each key head by itself, before rotation (Henry et al., 2020)."""

    def __init__(self, weight: torch.Tensor, eps: float, *, offset: float = 0.0) -> None:
        """Takes [heads, head_dim]: a line for each query head, then for each key head."""
        self.gain, self.eps = _gain(weight, offset), eps

    def __call__(self, x: torch.Tensor) -> None:
        """Normalises [rows, query heads + key heads, head_dim] in place."""
        head_rms_norm_(x, self.gain, self.eps)


def _gain(weight: torch.Tensor, offset: float) -> torch.Tensor:
    """Added once, in fp32. The CPU path also multiplies in fp32: converted once, not in every call."""
    if offset:
        return weight.float() + offset
    return weight.float() if weight.device.type == "cpu" else weight
