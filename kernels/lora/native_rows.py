"""Rows multiplied one by one by the native library, in bf16 and fp32, on CPUs that have it.

What all layers of a layout share, and what all batches of a layer share, is written once as C sees it.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import torch

from kernels import native
from kernels.lora.products import RowByRow, Rows
from kernels.lora.weights import RankMatrices

MOST_SLICES: Final = 8
"""Of a packed layer; as in lora.h."""


class _Slice(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("piece", "column", "width", "first", "count", "targets")),
        *((name, ctypes.c_void_p) for name in ("b_rows", "bags", "rows")),
    ]


class NativeProducts(ctypes.Structure):
    """`products.RowByRow` in C; keeps what it points to alive."""

    _fields_ = [
        ("count", ctypes.c_int64),
        ("slices", ctypes.c_int64),
        ("a_rows", ctypes.c_void_p),
        ("owner", ctypes.c_void_p),
        ("slice", _Slice * MOST_SLICES),
    ]
    kept: list[Any]

    @classmethod
    def of(cls, rows: RowByRow) -> NativeProducts:
        targets = [_numbers(piece.targets) for piece in rows.slices]
        slices = [
            _Slice(
                piece.piece,
                piece.columns.start,
                piece.columns.stop - piece.columns.start,
                piece.ranks.start,
                piece.ranks.stop - piece.ranks.start,
                len(target),
                piece.b.data_ptr(),
                piece.bags.data_ptr(),
                target.data_ptr(),
            )
            for piece, target in zip(rows.slices, targets, strict=True)
        ]
        held = (_Slice * MOST_SLICES)(*slices)
        made = cls(len(rows.a), len(slices), rows.a.data_ptr(), rows.owner.data_ptr(), held)
        made.kept = [rows, targets]
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


def serves(x: torch.Tensor, matrices: RankMatrices) -> bool:
    """Whether the library can: it is there, for this dtype, and matrices lie on the CPU row after row."""
    return (
        native.LIBRARY is not None
        and x.dtype in (torch.bfloat16, torch.float32)
        and x.is_cpu
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
        out.data_ptr(), out.stride(0), torch.get_num_threads(),
    )  # fmt: skip


def _numbers(rows: Rows) -> torch.Tensor:
    return torch.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
