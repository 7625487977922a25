"""The experts of a layer in one native call: only the experts that rows chose are read.

`reference.py` says what is computed. Weights are read where they were loaded, in any format that
`kernels.native` multiplies; adapters' too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

import numpy as np
import torch

from kernels import native
from kernels.lora import LoraWeights, native_rows
from kernels.lora.layout import Ints
from kernels.native.matrix import MatrixView, NativeMatrix


class ExpertsView(ctypes.Structure):
    """`Experts` of kernels/native/moe.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("gate_up", "down")),
        *((name, ctypes.c_int64) for name in ("count", "top_k", "hidden", "inter")),
    )


class ExpertLoraView(ctypes.Structure):
    """`ExpertLora` of kernels/native/moe.h: places and ranks of `gate_up`, `fused` and `down`."""

    _fields_ = tuple(
        (f"{name}_{part}", ctypes.c_void_p)
        for name in ("gate_up", "fused", "down")
        for part in ("places", "ranks")
    )


class _Addends(ctypes.Structure):
    """`Addends` of kernels/native/moe.h."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("shared", "shared_scale", "residual"))


class Addends:
    """Terms of a row's output beside the weighted sum of its experts.

    Attributes:
        shared: bf16 [rows, hidden], the output of an expert that all rows pass; None for none.
        shared_scale: bf16 [rows, 1], before the sigmoid that multiplies `shared`; None for a factor of 1.
        residual: bf16 [rows, hidden], or None.
    """

    def __init__(
        self,
        residual: torch.Tensor | None = None,
        shared: torch.Tensor | None = None,
        shared_scale: torch.Tensor | None = None,
    ) -> None:
        self.residual, self.shared, self.shared_scale = residual, shared, shared_scale

    def check(self, rows: int, hidden: int) -> None:
        """Raise ValueError for tensors that would be read out of bounds."""
        for name, width in (("residual", hidden), ("shared", hidden), ("shared_scale", 1)):
            tensor = getattr(self, name)
            if tensor is not None:
                _demand(name, tensor, (rows, width))

    def view(self) -> _Addends:
        """Return the C view, valid while this object lives."""
        tensors = (self.shared, self.shared_scale, self.residual)
        return _Addends(*(None if tensor is None else tensor.data_ptr() for tensor in tensors))


@dataclass(frozen=True, slots=True, eq=False)
class ExpertLora:
    """The batch's adapters on the experts of one layer, in place.

    Attributes:
        adapters: how many there are.
        view: addresses that are valid while `kept` lives.
    """

    adapters: int
    view: ExpertLoraView
    kept: tuple[object, ...]

    @classmethod
    def build(
        cls, experts: int, gate_up: LoraWeights | None, fused: LoraWeights | None, down: LoraWeights | None
    ) -> Self | None:
        """Return the adapters' C structure; None if there are none, or the native code cannot read them.

        Args:
            gate_up, fused, down: by (adapter, expert); None where no adapter changes the product.
        """
        addresses: list[int | None] = []
        held: list[object] = []
        adapters = 0
        for weights in (gate_up, fused, down):
            if weights is None:
                addresses += [None, None]
                continue
            found = native_rows.weights_of(weights)
            if found is None:
                return None
            ranks = _ranks(weights)
            adapters = weights.layout.adapters // experts
            addresses += [found.places, ranks.ctypes.data]
            held += [weights, ranks]
        return cls(adapters, ExpertLoraView(*addresses), tuple(held)) if held else None


def _ranks(weights: LoraWeights) -> Ints:
    """Return int64 [(adapter, expert), slices], made once."""
    if "ranks" not in weights.kept:
        weights.kept["ranks"] = np.array(weights.layout.ranks, dtype=np.int64).T.copy()
    found: Any = weights.kept["ranks"]
    return found  # type: ignore[no-any-return]


class NativeExperts:
    """The experts of one layer in the native code's form; keeps their weights alive."""

    def __init__(self, gate_up: Sequence[NativeMatrix], down: Sequence[NativeMatrix], top_k: int) -> None:
        """Take the weights of each expert: gate_up [2 * inter, hidden] and down [hidden, inter].

        Raises:
            ValueError: weights that the native code would read out of bounds; ask `fits` first.
        """
        if not self.fits(gate_up, down):
            raise ValueError("experts whose weights differ in form, or whose width is no multiple of 16")
        self.hidden, self.inter = gate_up[0].inner, down[0].inner
        self.count: Final = len(gate_up)
        self.top_k: Final = top_k
        for matrix in (*gate_up, *down):
            matrix.check()
        self._matrices = (*gate_up, *down)
        self._views = (MatrixView * (2 * self.count))(*(matrix.view() for matrix in self._matrices))
        first = ctypes.addressof(self._views)
        second = first + self.count * ctypes.sizeof(MatrixView)
        self.view: Final = ExpertsView(first, second, self.count, top_k, self.hidden, self.inter)

    @staticmethod
    def fits(gate_up: Sequence[NativeMatrix], down: Sequence[NativeMatrix]) -> bool:
        """Return True if the native code multiplies experts of these forms."""
        inter = down[0].inner
        return (
            len(gate_up) == len(down)
            and inter % native.LANES == 0
            and gate_up[0].columns == 2 * inter
            and down[0].columns == gate_up[0].inner
            and all(len({_form(matrix) for matrix in matrices}) == 1 for matrices in (gate_up, down))
        )

    def __call__(
        self,
        x: torch.Tensor,
        weights: torch.Tensor,
        chosen: torch.Tensor,
        addends: Addends,
        lora: ExpertLora | None = None,
        row_adapter: Sequence[int] = (),
    ) -> torch.Tensor:
        """Map x bf16 [rows, hidden] to the weighted sum of each row's experts, plus `addends`.

        Args:
            weights, chosen: float32 and int64 [rows, top_k], as `kernels.moe.route` returns them.
            row_adapter: the adapter's index of each row, -1 for none; read with `lora` only.

        Raises:
            ValueError: arguments that would be read out of bounds, or an unknown expert or adapter.
        """
        owners = np.array(row_adapter, dtype=np.int64)
        self._check(x, weights, chosen, addends, lora, owners)
        weights, chosen, view = weights.contiguous(), chosen.contiguous(), addends.view()
        out = torch.empty_like(x)
        library: Any = native.LIBRARY
        library.graft_experts(
            ctypes.addressof(self.view),
            None if lora is None else ctypes.addressof(lora.view),
            None if lora is None else owners.ctypes.data,
            x.data_ptr(),
            x.stride(0),
            chosen.data_ptr(),
            weights.data_ptr(),
            ctypes.addressof(view),
            out.data_ptr(),
            len(x),
            torch.get_num_threads(),
        )
        return out

    def _check(
        self,
        x: torch.Tensor,
        weights: torch.Tensor,
        chosen: torch.Tensor,
        addends: Addends,
        lora: ExpertLora | None,
        owners: Ints,
    ) -> None:
        rows = len(x)
        _demand("x", x, (rows, self.hidden))
        addends.check(rows, self.hidden)
        if (
            weights.shape != (rows, self.top_k)
            or chosen.shape != weights.shape
            or weights.dtype != torch.float32
            or chosen.dtype != torch.int64
            or (rows and (int(chosen.min()) < 0 or int(chosen.max()) >= self.count))
        ):
            raise ValueError(f"weights and experts are not [{rows}, {self.top_k}], of 0 to {self.count - 1}")
        if lora is not None and (len(owners) != rows or owners.max(initial=-1) >= lora.adapters):
            raise ValueError(f"{len(owners)} rows name adapters; expected {rows}, below {lora.adapters}")


def route(logits: torch.Tensor, top_k: int, *, normalize: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute `kernels.moe.route` of bf16 logits [rows, experts], contiguous; of equal ones the first."""
    rows, experts = logits.shape
    weights = torch.empty((rows, top_k), dtype=torch.float32)
    chosen = torch.empty((rows, top_k), dtype=torch.int64)
    library: Any = native.LIBRARY
    library.graft_route(
        logits.data_ptr(),
        weights.data_ptr(),
        chosen.data_ptr(),
        rows,
        experts,
        top_k,
        normalize,
        torch.get_num_threads(),
    )
    return weights, chosen


class BytesRead(NamedTuple):
    """Bytes that native calls have read of experts' weights, and of adapters on experts."""

    weights: int
    adapters: int


def bytes_read() -> BytesRead:
    """Return the bytes read since the last call."""
    counts = (ctypes.c_int64 * 2)()
    first = ctypes.addressof(counts)
    library: Any = native.LIBRARY
    library.graft_expert_bytes(first, first + ctypes.sizeof(ctypes.c_int64))
    return BytesRead(*counts)


def _form(matrix: NativeMatrix) -> tuple[object, ...]:
    scales = None if matrix.scales is None else matrix.scales.dtype
    return matrix.bits, matrix.columns, matrix.inner, matrix.group, scales, matrix.zeros is None


def _demand(name: str, tensor: torch.Tensor, shape: tuple[int, int]) -> None:
    if tuple(tensor.shape) != shape or tensor.dtype != torch.bfloat16 or not tensor.is_contiguous():
        raise ValueError(
            f"{name} has shape {list(tensor.shape)}, {tensor.dtype}; "
            f"expected bfloat16 {list(shape)}, contiguous"
        )
