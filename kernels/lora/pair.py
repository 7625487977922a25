"""One adapter's weights for one slice of a linear layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class LoraPair:
    """One adapter's weights for one slice of a linear layer; the scaling is folded into `b`.

    Attributes:
        a: [rank, in], shrinks. Of an embedding: [rank, vocabulary].
        b: [rank, out], expands (PEFT's `lora_B` transposed, times the scaling).
    """

    a: torch.Tensor
    b: torch.Tensor

    @property
    def rank(self) -> int:
        return self.a.shape[0]

    @property
    def nbytes(self) -> int:
        return self.a.nbytes + self.b.nbytes

    @classmethod
    def mixed(cls, members: Sequence[tuple[LoraPair | None, float]]) -> LoraPair | None:
        """Several adapters with weights as one: `sum_i w_i B_i A_i` is their ranks side by side.

        The weight goes into `b`, in float32 before it is rounded once.

        Args:
            members: (pair, weight); None where the member leaves the slice alone.

        Returns:
            None when every member leaves the slice alone.
        """
        present = [(pair, weight) for pair, weight in members if pair is not None]
        if not present:
            return None
        b = [(pair.b.float() * weight).to(pair.b.dtype) for pair, weight in present]
        return cls(torch.cat([pair.a for pair, _ in present]), torch.cat(b))


Pairs = tuple[tuple[LoraPair | None, ...], ...]
"""By slice, then by adapter index; None where the adapter leaves the slice alone."""
