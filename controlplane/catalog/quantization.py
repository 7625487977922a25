"""Shapes of packed weights, from the tensors that are stored with them, and the quantization method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from controlplane.catalog.safetensors_header import TensorInfo

_WORD_BITS: Final = 32
"""Bits of the integers into which AWQ, GPTQ and compressed-tensors pack values."""
_MAX_METHOD: Final = 40
QUANTIZATION_PARTS: Final = (
    ".qweight",
    ".qzeros",
    ".scales",
    ".g_idx",
    "_scale",
    "_scale_inv",
    "_scales",
    "_scale_2",
    "_zero_point",
    "_zeros",
    "_blocks",
    ".weight_packed",
    ".weight_shape",
    ".weight_g_idx",
    ".SCB",
    ".weight_format",
    ".absmax",
    ".quant_map",
    ".nested_absmax",
    ".nested_quant_map",
    ".input_amax",
    ".weight_global_scale",
    ".input_global_scale",
)
"""Ends of the names of tensors that belong to a quantized weight."""

Shape = tuple[int, ...]


class UnknownShapeError(ValueError):
    """Weights whose headers do not tell the shape of the layer; the text says what to register instead."""


def quantization_method(config: Mapping[str, Any]) -> str:
    """Return the method's name, such as awq, gptq, fp8 or compressed-tensors; "" for plain weights."""
    settings = quantization_settings(config)
    method = settings.get("quant_method") or settings.get("quant_algo")
    if not method and (settings.get("load_in_4bit") or settings.get("load_in_8bit")):
        method = "bitsandbytes"
    return str(method or "").lower()[:_MAX_METHOD]


def quantization_settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return quantization_config, also of a nested section; empty for plain weights."""
    for section in (config, *(item for item in config.values() if isinstance(item, dict))):
        for field in ("quantization_config", "compression_config"):
            if isinstance(settings := section.get(field), dict):
                return settings
    return {}


def unpacked(
    name: str, tensors: Mapping[str, TensorInfo], config: Mapping[str, Any]
) -> tuple[str, Shape] | None:
    """Return the module's path and the shape of its plain weight; None if this is no packed weight."""
    shape = tensors[name].shape
    if len(shape) == 2 and name.endswith(".qweight"):
        path = name.removesuffix(".qweight")
        return path, _of_words(path, shape, tensors, quantization_settings(config))
    if len(shape) >= 2 and name.endswith(".weight_packed"):
        path = name.removesuffix(".weight_packed")
        if tensors[name].dtype == "U8":  # NVFP4 and MXFP4: two values a byte
            return path, (*shape[:-1], 2 * shape[-1])
        bits = _packed_bits(quantization_settings(config))
        return path, (*shape[:-1], shape[-1] * _WORD_BITS // bits)
    # MXFP4: [..., blocks, 16 bytes of two values]
    if len(shape) >= 3 and name.endswith("_blocks") and tensors[name].dtype == "U8":
        return name.removesuffix("_blocks"), (*shape[:-2], 2 * shape[-2] * shape[-1])
    scale = tensors.get(f"{name}_scale")
    is_packed = tensors[name].dtype == "U8" and scale is not None and len(scale.shape) == 2
    if name.endswith(".weight") and len(shape) == 2 and is_packed:  # ModelOpt's NVFP4
        return name.removesuffix(".weight"), (shape[0], 2 * shape[1])
    return None


def _of_words(
    path: str, shape: Shape, tensors: Mapping[str, TensorInfo], settings: Mapping[str, Any]
) -> Shape:
    """Return (out, in) of a `qweight`: GPTQ packs along the inputs, [in / n, out]; AWQ along the outputs.

    `scales` has a column an output, and `qzeros` packs the same columns by the bits of a value. The
    configuration counts where neither is there.
    """
    rows, columns = shape
    scales, zeros = tensors.get(f"{path}.scales"), tensors.get(f"{path}.qzeros")
    bits = _bits(settings.get("bits", settings.get("w_bit")))
    if scales is None or len(scales.shape) != 2:
        is_awq = settings.get("quant_method") == "awq"
    else:
        out = scales.shape[1]
        is_awq = out != columns
        if zeros is not None and len(zeros.shape) == 2 and out:
            bits = _bits(zeros.shape[1] * _WORD_BITS // out)
    return (columns * _WORD_BITS // bits, rows) if is_awq else (columns, rows * _WORD_BITS // bits)


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
