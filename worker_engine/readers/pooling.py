"""A prompt's embedding: the hidden state of its last or first position, or the mean of all positions."""

from __future__ import annotations

from array import array

import torch

from contracts.adapters.pooling import Pooling
from worker_engine.protocol import PoolingParams
from worker_engine.readers.base import Findings, Predict


class Pooler:
    """Sums the positions that count, in float32."""

    def __init__(self, params: PoolingParams, num_tokens: int) -> None:
        self.start = num_tokens - 1 if params.mode is Pooling.LAST else 0
        self.stop = 1 if params.mode is Pooling.FIRST else num_tokens
        self._params, self._count = params, self.stop - self.start
        self._sum: torch.Tensor | None = None

    def take(self, hidden: torch.Tensor, predict: Predict) -> None:
        part = hidden.float().sum(dim=0)
        self._sum = part if self._sum is None else self._sum + part
        self.start += len(hidden)

    def finish(self) -> Findings | None:
        """None also where a sum of zero is to be scaled to length 1: it has no direction."""
        if self._sum is None:
            return None
        # In float64: the squares of large states overflow float32.
        vector = self._sum.double()
        vector = vector / (vector.norm() if self._params.normalize else self._count)
        if not bool(vector.isfinite().all()):
            return None
        if self._params.dimensions is not None:
            vector = vector[: self._params.dimensions]
            # First numbers that are all zero stay zero.
            if self._params.normalize and (norm := float(vector.norm())):
                vector = vector / norm
        return Findings(embedding=array("f", vector.tolist()))
