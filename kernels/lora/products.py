"""Chooses a batch's products on the CPU, on the host, once per batch and layout for all layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from kernels.lora.layout import Ints, Layout, ranges
from kernels.lora.segments import Segments

Rows = slice | torch.Tensor
"""Consecutive rows, or int64 row numbers."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost model for multiplying rows one by one or in one GEMM per adapter; only ratios matter.

    Attributes:
        launch: us to start a GEMM: oneDNN's look-up of its primitive for bf16, MKL's for fp32.
        stream: bytes of weights that a GEMM of few rows reads per us.
        reread: bytes of weights that rows read per us from the cache.
        fewest: rows from which GEMMs may pay off. MKL streams an fp32 product of one large row better.
    """

    launch: float
    stream: float
    reread: float
    fewest: int


BF16: Final = Cost(launch=40.0, stream=18e3, reread=10e3, fewest=2)
FP32: Final = Cost(launch=15.0, stream=18e3, reread=6e3, fewest=1)


@dataclass(frozen=True, slots=True)
class Expand:
    """One slice of rows that are multiplied one by one.

    Attributes:
        piece: index of the slice.
        columns: the slice's columns of the output.
        ranks: the slice's part of the shrunk values.
        b: int32, a row of the slice's B for each shrunk value.
        bags: int32, where each target's shrunk values begin.
        targets: the batch's rows that change.
    """

    piece: int
    columns: slice
    ranks: slice
    b: torch.Tensor
    bags: torch.Tensor
    targets: Rows


@dataclass(frozen=True, slots=True)
class RowByRow:
    """Rows of adapters with few rows each: each row is multiplied with its own ranks.

    Attributes:
        a: int32, a row of A for each shrunk value.
        owner: int32, the batch row of each shrunk value.
    """

    a: torch.Tensor
    owner: torch.Tensor
    slices: tuple[Expand, ...]


@dataclass(frozen=True, slots=True)
class Gemm:
    """All rows of one adapter.

    Attributes:
        rows: the batch's rows.
        a: rows of A over all slices.
        slices: (index, columns of the output, part of the shrunk values, rows of B).
    """

    rows: Rows
    a: Rows
    slices: tuple[tuple[int, slice, slice, Rows], ...]


@dataclass(frozen=True, slots=True)
class Products:
    """Partition of the rows with weights in a layout into single rows and GEMMs."""

    rows: RowByRow | None
    gemms: tuple[Gemm, ...]

    @classmethod
    def choose(cls, segments: Segments, layout: Layout, *, gemms: bool = True) -> Products:
        """Choose the products of a batch.

        Args:
            gemms: False multiplies every row by itself, regardless of its adapter's number of rows.
        Raises:
            ValueError: the batch names an adapter that the layout lacks.
        """
        layout.check(segments.count)
        device = segments.row_adapter.device
        many = _pays(segments.count, layout, device) & gemms
        adapters = np.asarray(segments.adapters, dtype=np.int64)
        rows = np.flatnonzero(adapters >= 0)
        rows = rows[~many[adapters[rows]]]
        return cls(
            _row_by_row(rows, adapters[rows], layout, device),
            tuple(_gemm(segments, adapter, layout, device) for adapter in np.flatnonzero(many).tolist()),
        )


def _pays(count: Ints, layout: Layout, device: torch.device) -> npt.NDArray[np.bool_]:
    """Return, by adapter, True if GEMMs for its rows take less time than the rows one by one."""
    cost = BF16 if layout.dtype.itemsize == 2 else FP32
    nbytes = layout.elements[: len(count)] * layout.dtype.itemsize
    if device.type != "cpu":
        # On CUDA, the gradient of embedding_bag's weights lacks bfloat16, and rounds each product to float16.
        return (count > 0) & (nbytes > 0)
    slices = sum(np.array(ranks[: len(count)]) > 0 for ranks in layout.ranks)
    faster = cost.launch * (1 + slices) + nbytes / cost.stream < count * nbytes / cost.reread
    return faster & (count >= cost.fewest) & (nbytes > 0)


def _row_by_row(rows: Ints, adapter: Ints, layout: Layout, device: torch.device) -> RowByRow | None:
    a: list[Ints] = []
    owner: list[Ints] = []
    slices: list[Expand] = []
    begin = 0
    for piece, columns in enumerate(layout.columns):
        rank = np.array(layout.ranks[piece], dtype=np.int64)[adapter]
        chosen = ranges(layout.first[piece][adapter], rank)
        if not len(chosen):
            continue
        live = rank > 0
        a.append(layout.a[piece][chosen])
        owner.append(np.repeat(rows, rank))
        bags = (np.cumsum(rank) - rank)[live]
        slices.append(
            Expand(
                piece,
                columns,
                slice(begin, begin + len(chosen)),
                _int32(layout.b[piece][chosen], device),
                _int32(bags, device),
                _rows(rows[live], device),
            )
        )
        begin += len(chosen)
    if not slices:
        return None
    return RowByRow(_int32(np.concatenate(a), device), _int32(np.concatenate(owner), device), tuple(slices))


def _gemm(segments: Segments, adapter: int, layout: Layout, device: torch.device) -> Gemm:
    before = int(segments.count[:adapter].sum())
    rows = segments.order[before : before + int(segments.count[adapter])]
    a: list[Ints] = []
    slices: list[tuple[int, slice, slice, Rows]] = []
    begin = 0
    for piece, columns in enumerate(layout.columns):
        if rank := layout.ranks[piece][adapter]:
            part = slice(layout.first[piece][adapter], layout.first[piece][adapter] + rank)
            a.append(layout.a[piece][part])
            held = _rows(layout.b[piece][part], device)
            slices.append((piece, columns, slice(begin, begin + rank), held))
            begin += rank
    return Gemm(_rows(rows, device), _rows(np.concatenate(a), device), tuple(slices))


def _rows(numbers: Ints, device: torch.device) -> Rows:
    first, last = int(numbers[0]), int(numbers[-1]) + 1
    if last - first == len(numbers) and bool((np.diff(numbers) == 1).all()):
        return slice(first, last)
    return torch.from_numpy(numbers).to(device)


def _int32(numbers: Ints, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(numbers.astype(np.int32)).to(device)
