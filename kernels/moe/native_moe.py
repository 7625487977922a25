"""A layer of experts with its router and shared expert, in the form that `kernels.native.stack` takes."""

from __future__ import annotations

import ctypes
from typing import Final

from kernels.moe.native_experts import ExpertsView, NativeExperts
from kernels.native.matrix import MatrixView, NativeMatrix


class _Moe(ctypes.Structure):
    """`Moe` of kernels/native/kernels.cpp."""

    _fields_ = (
        ("experts", ExpertsView),
        *((name, ctypes.c_void_p) for name in ("router", "shared_gate_up", "shared_down", "shared_scale")),
        ("shared_inter", ctypes.c_int64),
        ("normalizes", ctypes.c_int64),
    )


class NativeMoe:
    """Keeps the weights alive.

    Attributes:
        shapes: (out, in) of the router, shared_gate_up, shared_down and shared_scale, and of a single
            expert's gate and up, both of one A, and down.
        view: the C structure.
    """

    def __init__(
        self,
        experts: NativeExperts,
        router: NativeMatrix,
        *,
        normalizes: bool,
        shared_gate_up: NativeMatrix | None = None,
        shared_down: NativeMatrix | None = None,
        shared_scale: NativeMatrix | None = None,
    ) -> None:
        """Raises ValueError for weights that the native code would read out of bounds."""
        hidden, inter = experts.hidden, experts.inter
        shared = 0 if shared_down is None else shared_down.inner
        self.hidden: Final = hidden
        self.shapes: Final = (
            (experts.count, hidden),
            (2 * shared, hidden),
            (hidden, shared),
            (1, hidden),
            (2 * inter, hidden),
            (2 * inter, hidden),
            (hidden, inter),
        )
        matrices = (router, shared_gate_up, shared_down, shared_scale)
        if (shared_gate_up is None) != (shared_down is None) or (shared_scale and not shared):
            raise ValueError("a shared expert needs both of its matrices")
        for matrix, shape in zip(matrices, self.shapes, strict=False):
            if matrix is not None and (matrix.columns, matrix.inner) != shape:
                raise ValueError(f"a matrix is {[matrix.columns, matrix.inner]}; expected {list(shape)}")
            if matrix is not None:
                matrix.check()
        views: list[MatrixView | None] = [None if matrix is None else matrix.view() for matrix in matrices]
        addresses = [None if view is None else ctypes.addressof(view) for view in views]
        self._kept = (experts, matrices, views)
        self.view: Final = _Moe(experts.view, *addresses, shared, normalizes)
