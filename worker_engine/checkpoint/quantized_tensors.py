"""A checkpoint's quantized weights, by the name of the full-precision weight that each replaces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import torch

from kernels.quantization import QuantizedWeight
from kernels.quantization.formats import (
    unpack_awq,
    unpack_columns,
    unpack_dense,
    unpack_e8m0,
    unpack_mxfp4,
    unpack_rows,
)
from worker_engine.checkpoint.quantization_config import Form, Quantization, Scheme
from worker_engine.errors import CheckpointError

_MARKS: Final[Mapping[Form, str]] = {
    "pack-quantized": ".weight_packed",
    "int-quantized": ".weight_scale",
    "float-quantized": ".weight_scale",
    "mxfp4-pack-quantized": ".weight_packed",
    "awq": ".qweight",
    "mxfp4": "_blocks",
    "gptq": ".qweight",
}
"""Suffix of a tensor that only quantized modules have."""
_PARTS: Final[Mapping[Form, tuple[str, ...]]] = {
    "pack-quantized": (".weight_packed", ".weight_scale", ".weight_shape", ".weight_zero_point"),
    "int-quantized": (".weight", ".weight_scale"),
    "float-quantized": (".weight", ".weight_scale"),
    "mxfp4-pack-quantized": (".weight_packed", ".weight_scale"),
    "awq": (".qweight", ".qzeros", ".scales"),
    "mxfp4": ("_blocks", "_scales"),
    "gptq": (".qweight", ".qzeros", ".scales", ".g_idx"),
}
_WEIGHT: Final = ".weight"
_MXFP4_GROUP: Final = 32
"""Inputs that share a scale."""
_SCALES: Final = (torch.bfloat16, torch.float16, torch.float32)

Read = Callable[[str], torch.Tensor]
"""Returns the stored tensor of the given name. Raises CheckpointError."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """The tensors of one quantized module; every error names the tensor."""

    read: Read
    module: str

    def get(self, part: str, shape: tuple[int, ...], *dtypes: torch.dtype) -> torch.Tensor:
        tensor, name = self.read(self.module + part), self.module + part
        if tuple(tensor.shape) != shape:
            raise CheckpointError(f"tensor {name} has shape {list(tensor.shape)}, expected {list(shape)}")
        if tensor.dtype not in dtypes:
            raise CheckpointError(f"tensor {name} is {tensor.dtype}, expected {dtypes[0]}")
        return tensor


class QuantizedTensors:
    """Which weights of a checkpoint are quantized, and the tensors that store them."""

    def __init__(self, quantization: Quantization, names: Iterable[str], read: Read) -> None:
        """Raises CheckpointError for a quantized module without a scheme in config.json."""
        self._form, self._read = quantization.form, read
        mark = _MARKS[self._form]
        self._names = frozenset(names)
        self._schemes: dict[str, Scheme] = {}
        for name in self._names:
            if not name.endswith(mark):
                continue
            module = name.removesuffix(mark)
            scheme = quantization.scheme(module)
            if scheme is None:
                raise CheckpointError(f"tensor {name}: no group of quantization_config targets {module}")
            self._schemes[module if self._form == "mxfp4" else module + _WEIGHT] = scheme

    def __contains__(self, name: str) -> bool:
        return name in self._schemes

    def scheme(self, name: str) -> Scheme | None:
        """Return the weight's scheme; None if it is not quantized."""
        return self._schemes.get(name)

    def parts(self, name: str) -> list[str]:
        """Return the names of the tensors that store a weight."""
        module = name.removesuffix(_WEIGHT)
        return [module + part for part in _PARTS[self._form] if module + part in self._names]

    def shapes(self, stored: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Return all tensor shapes as if nothing were quantized. Raises CheckpointError."""
        inside = {part for name in self._schemes for part in self.parts(name)}
        shapes = {name: shape for name, shape in stored.items() if name not in inside}
        return shapes | {name: self._shape(name, stored) for name in self._schemes}

    def get(self, name: str, shape: tuple[int, int]) -> QuantizedWeight:
        """Return the weight [out, in].

        Raises:
            CheckpointError: a part is missing, of the wrong shape or of another dtype.
        """
        scheme, (out, inner) = self._schemes[name], shape
        if self._form == "mxfp4":
            raise CheckpointError(f"tensor {name}: blocks of MXFP4 are served for stacked experts alone")
        parts = _Parts(self._read, name.removesuffix(_WEIGHT))
        group = scheme.group or inner
        if inner % group:
            raise CheckpointError(f"tensor {name}: {inner} inputs are no multiple of group_size {group}")
        groups = inner // group
        if self._form == "awq":
            if out % 8:
                raise CheckpointError(f"tensor {name}: {out} outputs are no multiple of 8, as AWQ packs them")
            codes = unpack_awq(parts.get(".qweight", (inner, out // 8), torch.int32))
            zeros = unpack_awq(parts.get(".qzeros", (groups, out // 8), torch.int32))
            scales = parts.get(".scales", (groups, out), *_SCALES).T.contiguous()
            return QuantizedWeight(codes, scales, zeros, 4)
        if self._form == "gptq":
            return self._of_gptq(parts, out, inner, group)
        if parts.module + ".weight_g_idx" in self._names:
            raise CheckpointError(f"tensor {parts.module}.weight_g_idx: inputs out of order are not served")
        if self._form == "mxfp4-pack-quantized":
            codes = unpack_mxfp4(parts.get(".weight_packed", (out, inner // 2), torch.uint8))
            exponents = parts.get(".weight_scale", (out, groups), torch.uint8)
            return QuantizedWeight(codes, unpack_e8m0(exponents), None, 4, "e2m1")
        scales = parts.get(".weight_scale", (out, groups), *_SCALES)
        if self._form == "float-quantized":
            codes = parts.get(".weight", shape, torch.float8_e4m3fn)
            return QuantizedWeight(codes, scales, None, 8, "e4m3")
        if self._form == "int-quantized":
            return QuantizedWeight(parts.get(".weight", shape, torch.int8), scales, None, scheme.bits)
        width = -(-inner * scheme.bits // 32)
        codes = unpack_rows(parts.get(".weight_packed", (out, width), torch.int32), scheme.bits, inner)
        if scheme.bits == 8:
            return QuantizedWeight((codes.short() - 128).to(torch.int8), scales, None, 8)
        own = None if scheme.symmetric else self._zeros(parts, out, groups)
        return QuantizedWeight(codes, scales, own, 4)

    def get_experts(self, name: str, experts: int, out: int, inner: int) -> list[QuantizedWeight]:
        """Return the weights [out, in] of stacked experts in MXFP4. Raises CheckpointError as `get`."""
        if inner % _MXFP4_GROUP:
            raise CheckpointError(f"tensor {name}: {inner} inputs are no multiple of {_MXFP4_GROUP}")
        parts, groups = _Parts(self._read, name), inner // _MXFP4_GROUP
        blocks = parts.get("_blocks", (experts, out, groups, _MXFP4_GROUP // 2), torch.uint8)
        exponents = parts.get("_scales", (experts, out, groups), torch.uint8)
        return [
            QuantizedWeight(unpack_mxfp4(codes).flatten(1), unpack_e8m0(scales), None, 4, "e2m1")
            for codes, scales in zip(blocks, exponents, strict=True)
        ]

    def _of_gptq(self, parts: _Parts, out: int, inner: int, group: int) -> QuantizedWeight:
        """Return 3 bits as 4: the products of 4 bits serve them exactly."""
        if out % 32:
            raise CheckpointError(f"tensor {parts.module}.qzeros: {out} outputs are no multiple of 32")
        if f"{parts.module}.g_idx" in self._names:
            order = parts.get(".g_idx", (inner,), torch.int32, torch.int64)
            if not torch.equal(order.long(), torch.arange(inner) // group):
                raise CheckpointError(f"tensor {parts.module}.g_idx: inputs out of order are not served")
        groups = inner // group
        words = parts.get(".qweight", (inner * 3 // 32, out), torch.int32)
        zeros = unpack_dense(parts.get(".qzeros", (groups, out * 3 // 32), torch.int32), 3) + 1
        scales = parts.get(".scales", (groups, out), *_SCALES).T.contiguous()
        return QuantizedWeight(unpack_dense(words.T.contiguous(), 3), scales, zeros.T.contiguous(), 4)

    def _zeros(self, parts: _Parts, out: int, groups: int) -> torch.Tensor:
        """Return uint8 zero points [out, groups]; older libraries store int8 minus 8, others packed."""
        if self._read(parts.module + ".weight_zero_point").dtype == torch.int8:
            plain = parts.get(".weight_zero_point", (out, groups), torch.int8)
            return (plain.short() + 8).to(torch.uint8)
        packed = parts.get(".weight_zero_point", (-(-out // 8), groups), torch.int32)
        return unpack_columns(packed, 4, out)

    def _shape(self, name: str, stored: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
        module = name.removesuffix(_WEIGHT)
        if self._form in ("int-quantized", "float-quantized"):
            return stored.get(name, ())
        if self._form == "awq":
            packed = stored[f"{module}.qweight"]
            return (8 * packed[1], packed[0]) if len(packed) == 2 else ()
        if self._form == "mxfp4":
            blocks = stored[f"{module}_blocks"]
            return (*blocks[:2], 2 * blocks[2] * blocks[3]) if len(blocks) == 4 else ()
        if self._form == "gptq":
            packed = stored[f"{module}.qweight"]
            return (packed[1], packed[0] * 32 // 3) if len(packed) == 2 else ()
        if self._form == "mxfp4-pack-quantized":
            packed = stored[f"{module}.weight_packed"]
            return (packed[0], 2 * packed[1]) if len(packed) == 2 else ()
        shape = self._read(f"{module}.weight_shape")
        if shape.shape != (2,) or shape.dtype not in (torch.int64, torch.int32):
            raise CheckpointError(f"tensor {module}.weight_shape must hold two whole numbers")
        return tuple(int(size) for size in shape)
