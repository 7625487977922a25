"""All decoder layers of a step in one native call, including adapters.

A decode step of a small model calls eight loops per layer, twelve with adapters. Between two calls Python
takes some microseconds, in which the other threads only wait. The results equal those of the single calls,
bit for bit: `graft_layers` makes the same calls.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from kernels import native
from kernels.native.matrix import MatrixView, NativeMatrix

if TYPE_CHECKING:
    from kernels.moe.native_moe import NativeMoe

_POINTERS: Final = (
    "input_norm",
    "head_norm",
    "mlp_norm",
    "qkv",
    "qkv_bias",
    "o",
    "o_bias",
    "gate_up",
    "gate_up_bias",
    "down",
    "down_bias",
    "kv",
    "moe",
)


class _Layer(ctypes.Structure):
    """`Layer` of kernels/native/kernels.cpp."""

    _fields_ = (*((name, ctypes.c_void_p) for name in _POINTERS), ("kind", ctypes.c_int64))


@dataclass(frozen=True, slots=True)
class StackLayer:
    """The tensors that one layer reads and writes.

    Attributes:
        input_norm, mlp_norm: float32 [hidden].
        head_norm: float32 [heads + kv_heads, head_dim], or None.
        qkv, o, gate_up, down: weights of any number of bits; each has a bias, bf16 [out], or None.
        moe: a layer of experts in place of gate_up and down, which are None then.
        kv: bf16 [2 (keys, then values), kv_heads, pages, page_size, head_dim], contiguous.
        kind: index of its attention step in a call.
    """

    input_norm: torch.Tensor
    head_norm: torch.Tensor | None
    mlp_norm: torch.Tensor
    qkv: NativeMatrix
    qkv_bias: torch.Tensor | None
    o: NativeMatrix
    o_bias: torch.Tensor | None
    gate_up: NativeMatrix | None
    gate_up_bias: torch.Tensor | None
    down: NativeMatrix | None
    down_bias: torch.Tensor | None
    kv: torch.Tensor
    kind: int
    moe: NativeMoe | None = None


class Adapters(NamedTuple):
    """A batch's LoRA weights, from `kernels.lora.native_stack`; the caller keeps them alive.

    Attributes:
        rows, layers: of the batch, and of the stack.
        table: address of `layers` LayerLora of kernels/native/lora.h.
        products: by layout.
        owners: int64 [rows], each row's adapter, -1 for none.
    """

    rows: int
    layers: int
    table: int
    products: ctypes.Array[ctypes.c_void_p]
    owners: torch.Tensor


class Stack:
    """Layers of one shape in the native code's form; keeps their tensors alive."""

    def __init__(self, layers: Sequence[StackLayer], *, heads: int, eps: float) -> None:
        """Raises ValueError for inconsistent tensors, because the native code checks nothing."""
        self._layers = tuple(layers)
        self._eps, self._heads = eps, heads
        first = layers[0]
        self._hidden = first.input_norm.numel()
        self._inter = next((layer.down.inner for layer in layers if layer.down is not None), 0)
        self._moe = next((layer.moe for layer in layers if layer.moe is not None), None)
        self.kinds: Final = 1 + max(layer.kind for layer in layers)
        for layer in layers:
            self._check(layer)
        self._views: list[MatrixView] = []
        self._table = (_Layer * len(layers))()
        for entry, layer in zip(self._table, layers, strict=True):
            for name in _POINTERS:
                value = getattr(layer, name)
                setattr(entry, name, self._address(value))
            entry.kind = layer.kind

    def _address(self, value: torch.Tensor | NativeMatrix | NativeMoe | None) -> int | None:
        if value is None or isinstance(value, torch.Tensor):
            return None if value is None else value.data_ptr()
        if not isinstance(value, NativeMatrix):
            return ctypes.addressof(value.view)
        self._views.append(value.view())
        return ctypes.addressof(self._views[-1])

    def _check(self, layer: StackLayer) -> None:
        kv_heads, head_dim = layer.kv.shape[1], layer.kv.shape[4]
        attended, stacked = self._heads * head_dim, (self._heads + 2 * kv_heads) * head_dim
        linears = [("qkv", self._hidden, stacked), ("o", attended, self._hidden)]
        if layer.moe is None:
            linears += [("gate_up", self._hidden, 2 * self._inter), ("down", self._inter, self._hidden)]
        elif self._moe is None or layer.moe.shapes != self._moe.shapes or layer.moe.hidden != self._hidden:
            raise ValueError("layers of experts of several shapes")
        for name, inner, out in linears:
            _demand_matrix(name, getattr(layer, name), out, inner)
            _demand(layer, f"{name}_bias", torch.bfloat16, (out,))
        for name, shape in (
            ("input_norm", (self._hidden,)),
            ("mlp_norm", (self._hidden,)),
            ("head_norm", (self._heads + kv_heads, head_dim)),
        ):
            _demand(layer, name, torch.float32, shape)
        _demand(layer, "kv", torch.bfloat16, tuple(self._layers[0].kv.shape))

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """(out, in) of qkv, o, gate_up and down, and then of `NativeMoe.shapes`."""
        kv = self._layers[0].kv
        attended, kv_rows = self._heads * kv.shape[4], 2 * kv.shape[1] * kv.shape[4]
        hidden, inter = self._hidden, self._inter
        dense = (attended + kv_rows, hidden), (hidden, attended), (2 * inter, hidden), (hidden, inter)
        return dense if self._moe is None else (*dense, *self._moe.shapes)

    def run_(self, x: torch.Tensor, steps: Sequence[int], adapters: Adapters | None = None) -> None:
        """Run x bf16 [rows, hidden], contiguous, through all layers, in place.

        Args:
            steps: by kind, addresses of attention steps of x's rows and this stack's heads and pages.
            adapters: of x's rows, in linear layers of `shapes`.

        Raises:
            ValueError: x that would be read out of bounds, too few steps, or adapters of other rows or
                layers.
        """
        if x.dim() != 2 or x.shape[1] != self._hidden or x.dtype != torch.bfloat16 or not x.is_contiguous():
            raise ValueError(
                f"x has shape {list(x.shape)}, {x.dtype}; "
                f"expected bfloat16 [rows, {self._hidden}], contiguous"
            )
        if len(steps) != self.kinds:
            raise ValueError(f"{len(steps)} attention steps for layers of {self.kinds} kinds")
        if adapters is not None and (
            (adapters.rows, adapters.layers) != (x.shape[0], len(self._layers))
            or len(adapters.owners) != x.shape[0]
        ):
            raise ValueError(
                f"adapters of {adapters.rows} rows and {adapters.layers} layers; "
                f"expected {x.shape[0]} and {len(self._layers)}"
            )
        (stacked, _), (_, attended), *_ = self.shapes
        width = self._hidden + stacked + attended + 3 * self._inter
        held = torch.empty(x.shape[0] * width, dtype=torch.bfloat16)
        native.LIBRARY.graft_layers(  # type: ignore[union-attr]
            ctypes.addressof(self._table),
            len(self._layers),
            (ctypes.c_void_p * len(steps))(*steps),
            adapters and adapters.table,
            adapters and adapters.products,
            adapters and adapters.owners.data_ptr(),
            x.data_ptr(),
            held.data_ptr(),
            self._hidden,
            self._inter,
            self._eps,
        )


def _demand_matrix(name: str, matrix: NativeMatrix | None, out: int, inner: int) -> None:
    if matrix is None:
        raise ValueError(f"{name} is missing")
    if (matrix.columns, matrix.inner) != (out, inner):
        raise ValueError(f"{name} is {[matrix.columns, matrix.inner]}; expected {[out, inner]}")
    try:
        matrix.check()
    except ValueError as error:
        raise ValueError(f"{name} is not as the native code reads it: {error}") from None


def _demand(layer: StackLayer, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor: torch.Tensor | None = getattr(layer, name)
    if tensor is None and name.endswith(("_bias", "head_norm")):
        return
    if (
        tensor is None
        or tensor.dtype != dtype
        or tuple(tensor.shape) != shape
        or not tensor.is_contiguous()
        or not tensor.is_cpu
    ):
        found = "nothing" if tensor is None else f"{list(tensor.shape)}, {tensor.dtype} on {tensor.device}"
        raise ValueError(f"{name} is {found}; expected {list(shape)}, {dtype}, contiguous on a CPU")
