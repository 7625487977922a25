"""Which adapters can share a batched product on the CPU, and at what cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

Ranks = tuple[tuple[int, ...], ...]
"""By slice, then by adapter."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a product costs on two AVX-512 cores, measured on weights that stream from memory.

    Only ratios matter: they decide when padding is cheaper than one more product.

    Attributes:
        launch: us to start a product. oneDNN's look-up of its primitive for bf16, against MKL's for fp32.
        stream: bytes of weights read in one us.
        flops: products times two done in one us, at few rows.
    """

    launch: float
    stream: float
    flops: float


BF16: Final = Cost(launch=20.0, stream=18e3, flops=250e3)
FP32: Final = Cost(launch=4.0, stream=35e3, flops=50e3)


@dataclass(frozen=True, slots=True)
class RankClass:
    """Adapters whose weights are stacked with one rank per slice.

    Attributes:
        adapters: their indices, rising.
        ranks: by slice; a member of lower rank is filled up with zeros.
    """

    adapters: tuple[int, ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Ranks and shape of a layer's adapters; compared by identity, as the key of plans.

    Attributes:
        ranks: real ranks.
        columns: each slice's columns of the output.
        inner: columns of the input; of an embedding, its vocabulary.
        dtype: of weights, input and output.
        classes: every adapter that has a rank is in one.
    """

    ranks: Ranks
    columns: tuple[slice, ...]
    inner: int
    dtype: torch.dtype
    classes: tuple[RankClass, ...]

    @classmethod
    def of(cls, ranks: Ranks, widths: Sequence[int], inner: int, dtype: torch.dtype) -> Layout:
        """Sorts adapters into classes by their ranks."""
        stops = [sum(widths[: index + 1]) for index in range(len(widths))]
        columns = tuple(slice(stop - width, stop) for stop, width in zip(stops, widths, strict=True))
        layout = cls(ranks, columns, inner, dtype, ())
        object.__setattr__(layout, "classes", tuple(layout._classes()))
        return layout

    @property
    def cost(self) -> Cost:
        return BF16 if self.dtype.itemsize == 2 else FP32

    @property
    def width(self) -> int:
        """Columns of the output."""
        return int(self.columns[-1].stop)

    def launches(self) -> float:
        """us to start the products of one group: a shrink, and an expand per slice."""
        return (1 + len(self.columns)) * self.cost.launch

    def elements(self, ranks: Sequence[int]) -> int:
        """Weights of an adapter of these ranks."""
        widths = (piece.stop - piece.start for piece in self.columns)
        return sum(rank * (self.inner + width) for rank, width in zip(ranks, widths, strict=True))

    def _classes(self) -> list[RankClass]:
        """Equal ranks together; lower ones join, padded, while that costs less than products of their own."""
        members: dict[tuple[int, ...], list[int]] = {}
        for adapter, ranks in enumerate(zip(*self.ranks, strict=True)):
            if any(ranks):
                members.setdefault(ranks, []).append(adapter)
        groups: list[tuple[tuple[int, ...], list[int]]] = []
        for ranks in sorted(members, key=self.elements, reverse=True):
            if groups:
                top, held = groups[-1]
                joint = tuple(map(max, top, ranks))
                padding = len(members[ranks]) * (self.elements(joint) - self.elements(ranks))
                padding += len(held) * (self.elements(joint) - self.elements(top))
                if padding * self.dtype.itemsize / self.cost.stream < self.launches():
                    groups[-1] = joint, held + members[ranks]
                    continue
            groups.append((ranks, members[ranks]))
        return [RankClass(tuple(sorted(held)), ranks) for ranks, held in groups]
