"""The layout of a layer's adapters: a row of A and a row of B for each rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

Ints = npt.NDArray[np.int64]
Ranks = tuple[tuple[int, ...], ...]
"""By slice, then by adapter."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Ranks, offsets and shape of a layer's adapters; compared by identity, as the key of plans.

    Attributes:
        ranks: real ranks.
        columns: each slice's columns of the output.
        inner: columns of the input; for an embedding, its vocabulary.
        dtype: of weights, input and output.
        a: by slice, int64 [sum of its ranks]: rows of A, adapter by adapter.
        b: by slice, int64 [sum of its ranks]: rows of the slice's B.
        first: by slice, int64 [adapters]: where an adapter's ranks begin in `a` and `b`.
        elements: int64 [adapters]: number of weights of each.
    """

    ranks: Ranks
    columns: tuple[slice, ...]
    inner: int
    dtype: torch.dtype
    a: tuple[Ints, ...]
    b: tuple[Ints, ...]
    first: tuple[Ints, ...]
    elements: Ints

    @classmethod
    def build(cls, ranks: Ranks, widths: Sequence[int], inner: int, dtype: torch.dtype) -> Layout:
        """Build a contiguous layout, with A adapter-major so that one product shrinks all slices."""
        stops = [sum(widths[: index + 1]) for index in range(len(widths))]
        columns = tuple(slice(stop - width, stop) for stop, width in zip(stops, widths, strict=True))
        table = np.array(ranks, dtype=np.int64).reshape(len(widths), -1)
        first = tuple(np.cumsum(row) - row for row in table)
        a, b = _side_by_side(table)
        elements = (np.array(widths) + inner) @ table
        return cls(ranks, columns, inner, dtype, a, b, first, elements)

    @property
    def adapters(self) -> int:
        return len(self.ranks[0])

    def check(self, count: Ints) -> None:
        """Raise ValueError if a batch with `count` rows per adapter names an adapter that it lacks."""
        if len(count) > self.adapters:
            raise ValueError(f"segments name adapter {len(count) - 1}; expected less than {self.adapters}")

    @property
    def width(self) -> int:
        """Columns of the output."""
        return int(self.columns[-1].stop)


def ranges(starts: Ints, counts: Ints) -> Ints:
    """Return `starts[0]` and its next `counts[0] - 1` numbers, then those of `starts[1]`, and so on."""
    before = np.cumsum(counts) - counts
    numbers: Ints = np.arange(int(counts.sum())) + np.repeat(starts - before, counts)
    return numbers


def _side_by_side(table: Ints) -> tuple[tuple[Ints, ...], tuple[Ints, ...]]:
    by_adapter = table.T.reshape(-1)
    starts = (np.cumsum(by_adapter) - by_adapter).reshape(table.T.shape).T
    a = tuple(ranges(start, count) for start, count in zip(starts, table, strict=True))
    return a, tuple(np.arange(int(count.sum())) for count in table)
