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
"""qkv, o, gate_up and down."""


class PlacedModule(NamedTuple):
    """One linear layer's LoRA weights throughout the stack.

    Attributes:
        layouts: by layer; None where no adapter changes it.
        places: int64 [layers, adapters, slices, 2], addresses of bf16 A and B, each contiguous.
    """

    layouts: Sequence[Layout | None]
    places: Ints


class StackLora:
    """Addresses of a batch's weights in every layer. The owner must keep the weights in place."""

    def __init__(self, modules: Sequence[PlacedModule]) -> None:
        """`modules`: the `LINEARS` in order."""
        self._modules = tuple(modules)
        self.layers: Final = len(modules[0].layouts)
        numbers: dict[Layout, int] = {}
        # `LayerLora` of kernels/native/lora.h: addresses of places, then indices of layouts.
        self._table = np.zeros((self.layers, 2 * LINEARS), dtype=np.int64)
        for linear, (layouts, places) in enumerate(self._modules):
            begin, step = places.ctypes.data, places.strides[0]
            for layer, layout in enumerate(layouts):
                if layout is not None:
                    self._table[layer, linear] = begin + layer * step
                    self._table[layer, LINEARS + linear] = numbers.setdefault(layout, len(numbers))
        self._layouts = list(numbers)

    def demand_shapes(self, shapes: Sequence[tuple[int, int]]) -> None:
        """Raise ValueError for weights that do not fit linear layers of (out, in)."""
        for (layouts, _), (out, inner) in zip(self._modules, shapes, strict=True):
            for layout in set(layouts) - {None}:
                if layout is not None and (layout.inner != inner or layout.width > out):
                    raise ValueError(
                        f"adapters of a linear layer [{out}, {inner}] take {layout.inner} numbers "
                        f"and add {layout.width}"
                    )

    @property
    def address(self) -> int:
        return int(self._table.ctypes.data)

    def products(self, segments: Segments) -> ctypes.Array[ctypes.c_void_p]:
        """Return, by layout, addresses of structures that `segments` owns. Raises ValueError for unknown
        adapters.
        """
        made = [products_of(segments, layout) for layout in self._layouts]
        return (ctypes.c_void_p * len(made))(*(ctypes.addressof(each) for each in made))
