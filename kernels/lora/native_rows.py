"""LoRA products of rows in the native library, in bf16 and fp32, on CPUs that support it.

Rows of one adapter share the weights that are read, tile by tile, so one call serves any number of rows.
Weights are read where they were loaded. C structures are built once per layout for all layers, and once per
layer for all batches.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final, cast

import numpy as np
import torch

from kernels import native
from kernels.lora.layout import Ints, Layout
from kernels.lora.pair import LoraPair, Pairs
from kernels.lora.segments import Segments
from kernels.lora.weights import LoraWeights

_FIELDS: Final = 7
"""Number of fields of `LoraPart` in lora.h."""


class NativeProducts(ctypes.Structure):
    """C structure of each adapter with rows in the batch, slice by slice; keeps its arrays alive."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("parts", "shrunk")),
        *((name, ctypes.c_void_p) for name in ("part", "rows")),
    ]
    kept: tuple[object, ...]

    @classmethod
    def build(cls, segments: Segments, layout: Layout) -> NativeProducts:
        """Build the structure. Raises ValueError when the batch names an adapter that the layout lacks."""
        layout.check(segments.count)
        count, slices = segments.count, len(layout.columns)
        adapters = np.flatnonzero(count)
        row = (np.cumsum(count) - count)[adapters]
        parts: list[Ints] = []
        shrunk = 0
        for piece, columns in enumerate(layout.columns):
            rank = np.array(layout.ranks[piece], dtype=np.int64)[adapters]
            live = rank > 0
            rank, mine = rank[live], adapters[live]
            values = rank * count[mine]
            table = np.empty((len(rank), _FIELDS), dtype=np.int64)
            begin = shrunk + np.cumsum(values) - values
            table[:, :5] = np.stack((row[live], count[mine], rank, begin, mine * slices + piece), axis=1)
            table[:, 5:] = columns.start, columns.stop - columns.start
            parts.append(table)
            shrunk += int(values.sum())
        part = np.concatenate(parts)
        rows = np.ascontiguousarray(segments.order, dtype=np.int64)
        made = cls(len(part), shrunk, part.ctypes.data, rows.ctypes.data)
        made.kept = (part, rows)
        return made


class NativeWeights(ctypes.Structure):
    """C structure of the addresses of one layer's A and B; keeps the weights alive."""

    _fields_ = [("inner", ctypes.c_int64), ("places", ctypes.c_void_p)]
    kept: tuple[object, ...]

    @classmethod
    def build(cls, pairs: Pairs, inner: int) -> NativeWeights:
        places = np.array(
            [[addresses(pair) for pair in of_adapter] for of_adapter in zip(*pairs, strict=True)],
            dtype=np.int64,
        )
        return cls.from_places(places, pairs, inner)

    @classmethod
    def from_places(cls, places: Ints, pairs: object, inner: int) -> NativeWeights:
        """Take int64 [adapters, slices, 2], contiguous, addresses of A and B of what `pairs` keeps alive."""
        made = cls(inner, places.ctypes.data)
        made.kept = (places, pairs)
        return made


def addresses(pair: LoraPair | None) -> tuple[int, int]:
    """Return the addresses of A and B; 0 if the adapter does not change the slice (no part names it)."""
    return (0, 0) if pair is None else (pair.a.data_ptr(), pair.b.data_ptr())


def in_place(pair: LoraPair) -> bool:
    """Return True if the library can read the weights in place: contiguous rows on the CPU."""
    return pair.a.is_cpu and pair.a.is_contiguous() and pair.b.is_contiguous()


def serves(dtype: torch.dtype) -> bool:
    """Return True if the library multiplies weights of this dtype."""
    return native.LIBRARY is not None and dtype in (torch.bfloat16, torch.float32)


def weights_of(weights: LoraWeights) -> NativeWeights | None:
    """Return the weights' C structure, built once; None where the library cannot multiply them."""
    if "native" not in weights.kept:
        on_cpu = serves(weights.layout.dtype) and weights.device.type == "cpu"
        found = on_cpu and all(pair is None or in_place(pair) for row in weights.pairs for pair in row)
        weights.kept["native"] = NativeWeights.build(weights.pairs, weights.layout.inner) if found else None
    return cast(NativeWeights | None, weights.kept["native"])


def products_of(segments: Segments, layout: Layout) -> NativeProducts:
    """Return the batch's cached C structure for a layout. Raises ValueError as `NativeProducts.build`."""
    key = ("native", layout)
    if key not in segments.plans:
        segments.plans[key] = NativeProducts.build(segments, layout)
    return cast(NativeProducts, segments.plans[key])


def add(out: torch.Tensor, x: torch.Tensor, products: NativeProducts, weights: NativeWeights) -> None:
    """Add each row's adapter output to out [rows, columns]; last dimensions must be contiguous, unchecked."""
    library: Any = native.LIBRARY
    call = library.graft_lora if x.dtype == torch.bfloat16 else library.graft_lora_fp32
    call(
        ctypes.addressof(products),
        ctypes.addressof(weights),
        x.data_ptr(),
        x.stride(0),
        out.data_ptr(),
        out.stride(0),
        x.shape[0],
        torch.get_num_threads(),
    )
