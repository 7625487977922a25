"""A batch's adapters in all layers, in the form that `kernels.native.stack.Stack` takes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from kernels.lora.layout import Ints, Layout
from kernels.lora.native_rows import products_of
from kernels.lora.segments import Segments

LINEARS: Final = 4
"""qkv, o, gate_up and down; in a layer of experts also the router, shared_gate_up, shared_down and
shared_scale.
"""
_MOE: Final = 2 * LINEARS
"""Column of a layer's row in the table that has the address of its row for experts."""


class PlacedModule(NamedTuple):
    """One linear layer's LoRA weights throughout the stack.

    Attributes:
        layouts: by layer; None where no adapter changes it.
        places: int64 [layers, adapters, slices, 2], addresses of bf16 A and B, each contiguous.
    """

    layouts: Sequence[Layout | None]
    places: Ints


class PlacedExperts(NamedTuple):
    """One product of all experts throughout the stack.

    Attributes:
        ranks: int64 [layers, adapters, experts, slices].
        places: int64 [layers, adapters, experts, slices, 2], addresses of bf16 A and B, each contiguous.
        out, inner: of the product.
    """

    ranks: Ints
    places: Ints
    out: int
    inner: int


class StackLora:
    """Addresses of a batch's weights in every layer. The owner must keep the weights in place."""

    def __init__(self, modules: Sequence[PlacedModule], experts: Sequence[PlacedExperts] = ()) -> None:
        """Take the `LINEARS` in order, and the products of single experts: gate_up, fused and down."""
        self._modules, self._experts = tuple(modules), tuple(experts)
        self.layers: Final = len(modules[0].layouts)
        self._numbers: dict[Layout, int] = {}
        # `LayerLora` and `MoeLora` of kernels/native: addresses of places, then indices of layouts.
        self._table = np.zeros((self.layers, 2 * LINEARS + 1), dtype=np.int64)
        self._fill(self._table, self._modules[:LINEARS])
        if experts:
            self._moe = np.zeros((self.layers, 2 * LINEARS + 2 * len(experts)), dtype=np.int64)
            self._fill(self._moe, self._modules[LINEARS:])
            for index, product in enumerate(experts):
                live = product.ranks.any(axis=(1, 2, 3))
                for column, array in enumerate((product.places, product.ranks)):
                    addresses = array.ctypes.data + np.arange(self.layers) * array.strides[0]
                    self._moe[:, 2 * LINEARS + 2 * index + column] = addresses * live
            rows = self._moe.ctypes.data + np.arange(self.layers) * self._moe.strides[0]
            self._table[:, _MOE] = rows * self._moe.any(axis=1)

    def _fill(self, table: Ints, modules: Sequence[PlacedModule]) -> None:
        for linear, (layouts, places) in enumerate(modules):
            begin, step = places.ctypes.data, places.strides[0]
            for layer, layout in enumerate(layouts):
                if layout is not None:
                    table[layer, linear] = begin + layer * step
                    table[layer, LINEARS + linear] = self._numbers.setdefault(layout, len(self._numbers))

    def demand_shapes(self, shapes: Sequence[tuple[int, int]]) -> None:
        """Raise ValueError for weights that do not fit linear layers of (out, in).

        Args:
            shapes: `kernels.native.stack.Stack.shapes`.
        """
        *linears, gate_up, fused, down = shapes if self._experts else (*shapes, *[(0, 0)] * 3)
        for (layouts, _), (out, inner) in zip(self._modules, linears, strict=False):
            for layout in set(layouts) - {None}:
                if layout is not None and (layout.inner != inner or layout.width > out):
                    raise ValueError(
                        f"adapters of a linear layer [{out}, {inner}] take {layout.inner} numbers "
                        f"and add {layout.width}"
                    )
        for product, shape in zip(self._experts, (gate_up, fused, down), strict=False):
            if (product.out, product.inner) != shape:
                raise ValueError(
                    f"adapters of experts [{product.out}, {product.inner}]; the model's are {list(shape)}"
                )

    @property
    def address(self) -> int:
        return int(self._table.ctypes.data)

    def products(self, segments: Segments) -> ctypes.Array[ctypes.c_void_p]:
        """Return, by layout, addresses of structures that `segments` owns. Raises ValueError for unknown
        adapters.
        """
        known = self._modules[0].places.shape[1]
        if len(segments.count) > known:
            raise ValueError(f"segments name adapter {len(segments.count) - 1}; expected less than {known}")
        made = [products_of(segments, layout) for layout in self._numbers]
        return (ctypes.c_void_p * len(made))(*(ctypes.addressof(each) for each in made))
