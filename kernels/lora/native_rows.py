"""Rows multiplied by their adapters' ranks in the native library, in bf16 and fp32, on CPUs that have it.

Rows of one adapter share what is read of it, tile by tile, so one call serves any number of rows. What all
layers of a layout share, and what all batches of a layer share, is written once as C sees it.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final, cast

import numpy as np
import torch

from kernels import native
from kernels.lora.layout import Ints, Layout, ranges
from kernels.lora.segments import Segments
from kernels.lora.weights import LoraWeights, RankMatrices

MOST_SLICES: Final = 8
"""Of a packed layer; as in lora.h."""


class NativeProducts(ctypes.Structure):
    """Each adapter with rows in the batch, slice by slice, in C; keeps what it points to alive."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("parts", "shrunk")),
        *((name, ctypes.c_void_p) for name in ("part", "rows", "a_rows", "b_rows")),
    ]
    kept: tuple[object, ...]

    @classmethod
    def of(cls, segments: Segments, layout: Layout) -> NativeProducts:
        """Raises ValueError when the batch names an adapter that the layout lacks."""
        layout.check(segments.count)
        count = segments.count
        adapters = np.flatnonzero(count)
        row = (np.cumsum(count) - count)[adapters]
        parts: list[Ints] = []
        a: list[Ints] = []
        b: list[Ints] = []
        before = shrunk = 0
        for piece, columns in enumerate(layout.columns):
            rank = np.array(layout.ranks[piece], dtype=np.int64)[adapters]
            live = rank > 0
            rank, mine = rank[live], adapters[live]
            values = rank * count[mine]
            chosen = ranges(layout.first[piece][mine], rank)
            fields = (row[live], count[mine], before + np.cumsum(rank) - rank, rank)
            table = np.empty((len(rank), 8), dtype=np.int64)
            table[:, :5] = np.stack((*fields, shrunk + np.cumsum(values) - values), axis=1)
            table[:, 5:] = piece, columns.start, columns.stop - columns.start
            parts.append(table)
            a.append(layout.a[piece][chosen])
            b.append(layout.b[piece][chosen])
            before, shrunk = before + len(chosen), shrunk + int(values.sum())
        part = np.concatenate(parts)
        rows = np.ascontiguousarray(segments.order, dtype=np.int64)
        a_rows, b_rows = (np.concatenate(each).astype(np.int32) for each in (a, b))
        made = cls(len(part), shrunk, *(each.ctypes.data for each in (part, rows, a_rows, b_rows)))
        made.kept = (part, rows, a_rows, b_rows)
        return made


class NativeMatrices(ctypes.Structure):
    """`weights.RankMatrices` in C, which whoever holds this keeps alive."""

    _fields_ = [
        ("inner", ctypes.c_int64),
        ("a", ctypes.c_void_p),
        ("b", ctypes.c_void_p * MOST_SLICES),
    ]

    @classmethod
    def of(cls, matrices: RankMatrices) -> NativeMatrices:
        held = (ctypes.c_void_p * MOST_SLICES)(*(b.data_ptr() for b in matrices.b))
        return cls(matrices.a.shape[1], matrices.a.data_ptr(), held)


def matrices_of(weights: LoraWeights) -> NativeMatrices | None:
    """The weights in C, worked out once; None where the library cannot multiply them."""
    if "native" not in weights.kept:
        held = weights.matrices
        weights.kept["native"] = NativeMatrices.of(held) if _serves(held) else None
    return cast(NativeMatrices | None, weights.kept["native"])


def products_of(segments: Segments, layout: Layout) -> NativeProducts:
    """The batch's rows for layers of a layout, worked out once. Raises ValueError as `NativeProducts.of`."""
    key = ("native", layout)
    if key not in segments.plans:
        segments.plans[key] = NativeProducts.of(segments, layout)
    return cast(NativeProducts, segments.plans[key])


def _serves(matrices: RankMatrices) -> bool:
    """Whether the library is there, for this dtype, and matrices lie on the CPU row after row."""
    return (
        native.LIBRARY is not None
        and matrices.a.dtype in (torch.bfloat16, torch.float32)
        and matrices.a.is_cpu
        and len(matrices.b) <= MOST_SLICES
        and matrices.a.is_contiguous()
        and all(b.is_contiguous() for b in matrices.b)
    )


def add(out: torch.Tensor, x: torch.Tensor, products: NativeProducts, matrices: NativeMatrices) -> None:
    """out [rows, columns] += each row's adapter; last dimensions contiguous, which the caller checks."""
    library: Any = native.LIBRARY
    call = library.graft_lora if x.dtype == torch.bfloat16 else library.graft_lora_fp32
    call(
        ctypes.addressof(products), ctypes.addressof(matrices), x.data_ptr(), x.stride(0),
        out.data_ptr(), out.stride(0), x.shape[0], torch.get_num_threads(),
    )  # fmt: skip
