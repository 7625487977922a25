"""The adapters of a batch in all layers of a `kernels.native.stack.Stack`, as its one call takes them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Final, NamedTuple, Self

import torch

from kernels.lora.layout import Layout
from kernels.lora.native_rows import NativeMatrices, matrices_of, products_of
from kernels.lora.segments import Segments
from kernels.lora.weights import LoraWeights

LINEARS: Final = 4
"""qkv, o, gate_up and down."""


class _LayerLora(ctypes.Structure):
    """`LayerLora` of kernels/native/lora.h."""

    _fields_ = (("matrices", ctypes.c_void_p * LINEARS), ("layout", ctypes.c_int64 * LINEARS))


class _Native(NamedTuple):
    """One linear layer's weights, and where they lie."""

    weights: LoraWeights
    matrices: NativeMatrices

    @property
    def layout(self) -> Layout:
        return self.weights.layout


class StackLora:
    """Addresses of a batch's weights in every layer; keeps them alive."""

    def __init__(self, layers: Sequence[Sequence[_Native | None]]) -> None:
        self._layers = layers
        self._table = (_LayerLora * len(layers))()
        numbers: dict[Layout, int] = {}
        for entry, layer in zip(self._table, layers, strict=True):
            for module, held in enumerate(layer):
                if held is not None:
                    entry.matrices[module] = ctypes.addressof(held.matrices)
                    entry.layout[module] = numbers.setdefault(held.layout, len(numbers))
        self._layouts = list(numbers)

    @classmethod
    def of(
        cls, layers: Sequence[Sequence[LoraWeights | None]], shapes: Sequence[tuple[int, int]]
    ) -> Self | None:
        """None where the library cannot multiply some weights: not bf16 on a CPU, or not row after row.

        Args:
            layers: of each layer, by linear layer; None where no adapter changes one.
            shapes: (out, in) of each linear layer.

        Raises:
            ValueError: weights that do not fit their linear layer.
        """
        found = [[_native(*each) for each in zip(layer, shapes, strict=True)] for layer in layers]
        given = (weights for layer in layers for weights in layer)
        made = (held for layer in found for held in layer)
        if any(w is not None and h is None for w, h in zip(given, made, strict=True)):
            return None
        return cls(found)

    @property
    def layers(self) -> int:
        return len(self._layers)

    @property
    def address(self) -> int:
        return ctypes.addressof(self._table)

    def products(self, segments: Segments) -> ctypes.Array[ctypes.c_void_p]:
        """By layout, addresses of what `segments` keeps. Raises ValueError for another adapter."""
        made = [products_of(segments, layout) for layout in self._layouts]
        return (ctypes.c_void_p * len(made))(*(ctypes.addressof(each) for each in made))


def _native(weights: LoraWeights | None, shape: tuple[int, int]) -> _Native | None:
    if weights is None:
        return None
    (out, inner), layout = shape, weights.layout
    if layout.inner != inner or layout.width > out:
        raise ValueError(
            f"adapters of a linear layer [{out}, {inner}] take {layout.inner} numbers and add {layout.width}"
        )
    matrices = matrices_of(weights) if layout.dtype == torch.bfloat16 else None
    return None if matrices is None else _Native(weights, matrices)
