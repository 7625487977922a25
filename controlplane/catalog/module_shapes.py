"""Shapes of a checkpoint's modules, from the headers of plain and of quantized weights."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from contracts.adapters.module_names import layout_of
from controlplane.catalog.quantization import QUANTIZATION_PARTS, UnknownShapeError, unpacked
from controlplane.catalog.safetensors_header import TensorInfo

_WEIGHT: Final = ".weight"
_BIAS: Final = ".bias"
_NUMBER: Final = re.compile(r"(?<=\.)\d+(?=\.)")

Shape = tuple[int, ...]
Read = Callable[[str], bytes]
"""Returns the bytes of a tensor by its name."""

__all__ = ["UnknownShapeError", "module_shapes"]


def module_shapes(
    config: Mapping[str, Any], tensors: Mapping[str, TensorInfo], read: Read
) -> dict[str, Shape]:
    """Return the shape of every module's weight by common name (`contracts.adapters.module_names`).

    Linear weights are (out, in), stacked experts (experts, d1, d2), convolutions (out, in / groups,
    kernel...). Biases go by their own name, and so do parameters that are not called weight.

    Args:
        config: of config.json; `quantization_config` tells how packed weights are stored.
        read: reads a small tensor's bytes, for shapes that only the data tell.

    Raises:
        UnknownShapeError: neither headers nor metadata tell the shape of packed weights.
    """
    layout, four_bits = layout_of(tensors), _FourBits(tensors, read)
    shapes: dict[str, Shape] = {}
    for name in sorted(tensors):
        for path, shape in _of_tensor(name, tensors, config, four_bits):
            if shape:
                shapes[layout.common_name(path)] = shape
    return {path: _turned(path, shape, shapes) for path, shape in shapes.items()}


def _of_tensor(
    name: str, tensors: Mapping[str, TensorInfo], config: Mapping[str, Any], four_bits: _FourBits
) -> Iterator[tuple[str, Shape]]:
    if (packed := unpacked(name, tensors, config)) is not None:
        yield packed
    elif name.endswith(_WEIGHT):
        path, info = name.removesuffix(_WEIGHT), tensors[name]
        is_packed = info.dtype == "U8" and info.shape[1:] == (1,)
        yield path, four_bits.shape(name) if is_packed else info.shape
    elif not name.endswith(QUANTIZATION_PARTS) and ".quant_state." not in name:
        yield name, tensors[name].shape


class _FourBits:
    """Shapes of bitsandbytes' 4-bit weights: JSON in a tensor of bytes beside each.

    One layer's is read for all layers of its kind and size, since each may be a request to a remote store.
    """

    def __init__(self, tensors: Mapping[str, TensorInfo], read: Read) -> None:
        self._tensors, self._read = tensors, read
        self._known: dict[tuple[str, int], Shape] = {}

    def shape(self, name: str) -> Shape:
        """Return (out, in). Raises UnknownShapeError."""
        words = self._tensors[name].shape[0]
        key = (_NUMBER.sub("*", name), words)
        if (known := self._known.get(key)) is None:
            known = self._known[key] = self._read_shape(name, words)
        return known

    def _read_shape(self, name: str, words: int) -> Shape:
        states = (f"{name}.quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4"))
        state = next((item for item in states if item in self._tensors), None)
        if state is None:
            raise UnknownShapeError(
                "bitsandbytes stored these weights in 4 bits, without the shapes of layers in the files' "
                "headers: register the checkpoint from which they were made"
            )
        try:
            stated = json.loads(self._read(state))["shape"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UnknownShapeError(
                f"tensor {state} does not hold the shape of its layer: {error}"
            ) from error
        match stated:
            case [int(rows), int(columns)] if rows > 0 and columns > 0 and (rows * columns + 1) // 2 == words:
                return rows, columns
        raise UnknownShapeError(
            f"tensor {state} gives the shape {str(stated)[:100]}, which {words} bytes of {name} do not fill"
        )


def _turned(path: str, shape: Shape, shapes: Mapping[str, Shape]) -> Shape:
    """Return (out, in) of a layer that is stored as (in, out), as GPT-2's: its bias has `out` values."""
    bias = shapes.get(f"{path}{_BIAS}", ())
    if len(shape) == 2 and bias == (shape[1],) and shape[0] != shape[1]:
        return shape[1], shape[0]
    return shape
