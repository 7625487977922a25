"""The (row, expert) pairs of one layer, sorted so that the rows of an expert are neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from kernels.lora import Segments


@dataclass(frozen=True, slots=True, eq=False)
class Worklist:
    """The pairs of one layer and step, sorted by expert, then by adapter, then by row.

    Attributes:
        top_k: pairs of each row.
        order: int64 [pairs]: pair i is choice `order[i] % top_k` of row `order[i] // top_k`.
        rows: int64 [pairs], the row of each pair.
        experts: the experts that have pairs, ascending. No other expert's weights are read.
        offsets: where the pairs of each of `experts` begin, and then the number of pairs.
        segments: the pairs by adapter and expert, as adapter * experts of the layer + expert; None for a
            batch without adapters on experts.
    """

    top_k: int
    order: torch.Tensor
    rows: torch.Tensor
    experts: tuple[int, ...]
    offsets: tuple[int, ...]
    segments: Segments | None

    @classmethod
    def build(cls, chosen: torch.Tensor, num_experts: int, row_adapter: Sequence[int] | None = None) -> Self:
        """Sort the pairs.

        Args:
            chosen: int64 [rows, top_k], the experts of each row.
            row_adapter: the adapter's index of each row, -1 for none; None for a batch without adapters on
                experts.
        """
        top_k = chosen.shape[1]
        expert = chosen.cpu().numpy().reshape(-1)
        owner = np.full(len(expert), -1) if row_adapter is None else np.repeat(row_adapter, top_k)
        order = np.lexsort((owner, expert))
        count = np.bincount(expert, minlength=num_experts)
        active = np.flatnonzero(count)
        segments = None
        if row_adapter is not None:
            keys = np.where(owner < 0, -1, owner * num_experts + expert)[order]
            segments = Segments.group(keys.tolist(), chosen.device)
        places = torch.from_numpy(order).to(chosen.device)
        offsets = (0, *np.cumsum(count[active]).tolist())
        return cls(top_k, places, places // top_k, tuple(active.tolist()), offsets, segments)

    def multiply(
        self, x: torch.Tensor, width: int, product: Callable[[int, torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """Map the pairs' inputs [pairs, in] to [pairs, width], one product for each active expert.

        Args:
            product: maps an expert and its inputs [its pairs, in] to [its pairs, width].
        """
        out = x.new_empty(len(x), width)
        for expert, first, last in zip(self.experts, self.offsets, self.offsets[1:], strict=False):
            out[first:last] = product(expert, x[first:last])
        return out

    def combine(self, y: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Sum each row's pairs, weighted, in the order of its choices: float32 [rows, width].

        The order does not depend on the other rows, and neither do a row's bits.

        Args:
            y: [pairs, width], in the order of the list.
            weights: float32 [rows, top_k].
        """
        pairs = torch.empty_like(y)
        pairs[self.order] = y
        by_choice = pairs.view(-1, self.top_k, y.shape[1]).float()
        total = by_choice[:, 0] * weights[:, :1]
        for choice in range(1, self.top_k):
            total += by_choice[:, choice] * weights[:, choice : choice + 1]
        return total
