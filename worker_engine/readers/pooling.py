"""A prompt's embedding: hidden states of its last, its first or all of its positions, scaled to length 1."""

from __future__ import annotations

from array import array

import torch

from worker_engine.protocol import Pooling
from worker_engine.readers.base import Findings, Predict


class Pooler:
    """Sums the positions that count, in float32; their mean and their sum point the same way."""

    def __init__(self, pooling: Pooling, num_tokens: int) -> None:
        self.start = num_tokens - 1 if pooling is Pooling.LAST else 0
        self.stop = 1 if pooling is Pooling.FIRST else num_tokens
        self._sum: torch.Tensor | None = None

    def take(self, hidden: torch.Tensor, predict: Predict) -> None:
        part = hidden.float().sum(dim=0)
        self._sum = part if self._sum is None else self._sum + part
        self.start += len(hidden)

    def finish(self) -> Findings | None:
        """None also when the sum is nought, which has no direction."""
        if self._sum is None:
            return None
        # In float64: the squares of large states overflow float32.
        total = self._sum.double()
        unit = total / total.norm()
        return Findings(embedding=array("f", unit.tolist())) if bool(unit.isfinite().all()) else None
