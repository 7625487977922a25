"""The weights of one rank class of one layer, stacked for batched products."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from kernels.lora.layout import Layout, RankClass
from kernels.lora.pair import LoraPair, Pairs


@dataclass(frozen=True, slots=True)
class Expand:
    """One slice of a stack.

    Attributes:
        columns: the slice's columns of the output.
        ranks: the slice's columns of the shrunk activations.
        b: [adapters, rank, out of this slice].
    """

    columns: slice
    ranks: slice
    b: torch.Tensor


@dataclass(frozen=True, slots=True)
class Stack:
    """Adapter-major, so that one product shrinks for all slices of a packed layer.

    Attributes:
        a: [adapters, sum of ranks over slices, in].
        slices: those in which the class has a rank.
    """

    a: torch.Tensor
    slices: tuple[Expand, ...]

    @classmethod
    def of(cls, pairs: Pairs, layout: Layout, members: RankClass) -> Stack:
        """Copies the class's weights; ranks that a member lacks are zeros."""
        count, total = len(members.adapters), sum(members.ranks)
        device = next(pair.a.device for row in pairs for pair in row if pair is not None)
        slices: list[Expand] = []
        first = 0
        for row, rank, columns in zip(pairs, members.ranks, layout.columns, strict=True):
            if rank:
                width = columns.stop - columns.start
                zeros = torch.zeros(rank, width, dtype=layout.dtype, device=device)
                b = [part for adapter in members.adapters for part in _filled(row[adapter], "b", zeros)]
                slices.append(
                    Expand(columns, slice(first, first + rank), torch.cat(b).view(count, rank, width))
                )
            first += rank
        zeros = torch.zeros(max(members.ranks), layout.inner, dtype=layout.dtype, device=device)
        a = [
            part
            for adapter in members.adapters
            for row, rank in zip(pairs, members.ranks, strict=True)
            for part in _filled(row[adapter], "a", zeros[:rank])
        ]
        return cls(torch.cat(a).view(count, total, layout.inner), tuple(slices))


def _filled(pair: LoraPair | None, name: Literal["a", "b"], zeros: torch.Tensor) -> Iterator[torch.Tensor]:
    """The pair's rows, then as many zeros as they fall short of `zeros`."""
    if pair is not None:
        yield pair.a if name == "a" else pair.b
    if (rank := 0 if pair is None else pair.rank) < len(zeros):
        yield zeros[rank:]
