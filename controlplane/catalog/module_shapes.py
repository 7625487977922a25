"""Shapes of a checkpoint's modules, from the headers of plain and of quantized weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from contracts.adapters.module_names import layout_of
from controlplane.catalog.safetensors_header import TensorInfo

_WEIGHT: Final = ".weight"
_BIAS: Final = ".bias"
_WORD_BITS: Final = 32
"""Bits of the integers into which AWQ, GPTQ and compressed-tensors pack values."""

Shape = tuple[int, ...]


class UnknownShapeError(ValueError):
    """Weights whose headers do not tell the shape of the layer; the text says what to register instead."""


def module_shapes(config: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> dict[str, Shape]:
    """Return the shape of every module's weight by common name (`contracts.adapters.module_names`).

    Linear weights are (out, in); biases go by their own name. Only weights and biases of one or two
    dimensions count.

    Args:
        config: of config.json; `quantization_config` tells how packed weights are stored.

    Raises:
        UnknownShapeError: bitsandbytes stored weights in 4 bits.
    """
    quantization = config.get("quantization_config")
    settings = quantization if isinstance(quantization, dict) else {}
    layout = layout_of(tensors)
    shapes: dict[str, Shape] = {}
    for name, info in sorted(tensors.items()):
        for path, shape in _of_tensor(name, info, settings):
            if len(shape) in (1, 2):
                shapes[layout.common_name(path)] = shape
    return shapes


def _of_tensor(name: str, info: TensorInfo, settings: Mapping[str, Any]) -> Iterator[tuple[str, Shape]]:
    if name.endswith(_BIAS):
        yield name, info.shape
    elif name.endswith(_WEIGHT):
        if settings.get("load_in_4bit") and info.dtype == "U8" and info.shape[1:] == (1,):
            raise UnknownShapeError(
                "bitsandbytes stored these weights in 4 bits, without the shapes of layers in the files' "
                "headers: register the checkpoint from which they were made"
            )
        yield name.removesuffix(_WEIGHT), info.shape
    elif len(info.shape) == 2 and name.endswith(".qweight"):
        yield name.removesuffix(".qweight"), _unpacked(info.shape, settings)
    elif len(info.shape) == 2 and name.endswith(".weight_packed"):
        rows, words = info.shape
        yield name.removesuffix(".weight_packed"), (rows, words * _WORD_BITS // _packed_bits(settings))


def _unpacked(shape: Shape, settings: Mapping[str, Any]) -> Shape:
    """Return (out, in) of a `qweight`: GPTQ packs along the inputs, [in / n, out]; AWQ along the outputs."""
    rows, columns = shape
    bits = _bits(settings.get("bits"))
    if settings.get("quant_method") == "awq":
        return columns * _WORD_BITS // bits, rows
    return columns, rows * _WORD_BITS // bits


def _packed_bits(settings: Mapping[str, Any]) -> int:
    """Return the bits of compressed-tensors' weights; its groups of layers share them in practice."""
    groups = settings.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict):
            return _bits(weights.get("num_bits"))
    return _bits(None)


def _bits(value: object) -> int:
    """Return 2, 3, 4 or 8 as stated, else 4, which almost all packed checkpoints have."""
    return value if isinstance(value, int) and value in (2, 3, 4, 8) else 4
