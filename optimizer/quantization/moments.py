"""Input statistics of a linear layer, from which the search for scales computes errors exactly."""

from __future__ import annotations

import torch

from kernels.lora import Segments
from worker_engine.layers.linear import LinearLora, LoraLinear
from worker_engine.layers.linear_weight import LinearWeight


class Moments:
    """Sums over all rows x of a layer's input.

    For weights that differ by D, the squared error of the output is the trace of D H D^T, with H the mean of
    x x^T. So no row is stored.
    """

    def __init__(self, inner: int) -> None:
        self._rows = 0
        self._squares, self._sizes = torch.zeros(inner, inner), torch.zeros(inner)

    def add(self, x: torch.Tensor) -> None:
        """Add rows x [rows, in]."""
        wide = x.float()
        self._squares.addmm_(wide.T, wide)
        self._sizes += wide.abs().sum(0)
        self._rows += len(x)

    @property
    def second(self) -> torch.Tensor:
        """H, float32 [in, in]."""
        return self._squares / max(self._rows, 1)

    @property
    def size(self) -> torch.Tensor:
        """Mean of |x|, float32 [in]."""
        return self._sizes / max(self._rows, 1)


class ObservedLinear(LoraLinear):
    """A linear layer that records its input's moments."""

    def __init__(self, packed: LinearWeight, bias: torch.Tensor | None = None) -> None:
        super().__init__(packed, bias)
        self.moments = Moments(packed.dense().shape[1])

    def forward(
        self,
        x: torch.Tensor,
        lora: LinearLora | None,
        segments: Segments,
        residual: torch.Tensor | None = None,
    ) -> torch.Tensor:
        self.moments.add(x)
        return super().forward(x, lora, segments, residual)
