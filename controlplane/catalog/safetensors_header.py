"""Reads the header of a safetensors file with the standard library; the file is untrusted.

Format: 8 bytes little-endian header length, that many bytes of JSON {name: {dtype, shape,
data_offsets}}, then the tensors' bytes without gap or overlap.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

MAX_HEADER_BYTES: Final = 16 << 20
"""A real header takes about 100 bytes a tensor."""

_MAX_DIMENSIONS: Final = 8
"""Multiplying a million dimensions would take hours."""

DTYPE_BITS: Final[Mapping[str, int]] = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "F64": 64,
    "I64": 64,
    "U64": 64,
    "C64": 64,
}
"""Bits of a value. A tensor of F4 or F6 values fills whole bytes."""


class HeaderError(ValueError):
    """The file breaks the format; the text names the tensor and what was expected."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: `begin` and `end` are byte offsets into the data part."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """Tensors by name, in the order of their bytes; `data_start` is where the data part begins."""

    tensors: Mapping[str, TensorInfo]
    data_start: int


class Readable(Protocol):
    """The required method of a file."""

    def read(self, size: int, /) -> bytes: ...


def read_header(stream: Readable, *, size: int) -> SafetensorsHeader:
    """Read and check the header of a file of `size` bytes.

    Raises:
        HeaderError: on anything that is not a whole, well-formed file.
    """
    start = _read(stream, 8)
    if len(start) < 8:
        raise HeaderError(f"it has {size} bytes, too few for a header")
    length = int.from_bytes(start, "little")
    if length > MAX_HEADER_BYTES:
        raise HeaderError(f"its header claims {length} bytes; at most {MAX_HEADER_BYTES} are accepted")
    text = _read(stream, length)
    if len(text) < length:
        raise HeaderError(f"its header claims {length} bytes but the file ends after {8 + len(text)}")
    entries = _entries(text)
    tensors = {name: _tensor(name, entry) for name, entry in entries.items() if name != "__metadata__"}
    ordered = dict(sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)))
    _check_coverage(ordered, size - 8 - length)
    return SafetensorsHeader(ordered, 8 + length)


def _read(stream: Readable, size: int) -> bytes:
    """Return `size` bytes, or fewer at the end; one read of a network stream may return less."""
    data = b""
    while len(data) < size and (part := stream.read(size - len(data))):
        data += part
    return data


def _entries(text: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if len(entries) != len(pairs):
            raise HeaderError("its header names a tensor twice")
        return entries

    try:
        entries = json.loads(text.decode(), object_pairs_hook=unique)
    except HeaderError:
        raise
    except (ValueError, RecursionError) as error:
        raise HeaderError("its header is not JSON") from error
    if not isinstance(entries, dict):
        raise HeaderError("its header must be a JSON object")
    return entries


def _tensor(name: str, entry: object) -> TensorInfo:
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(begin), int(end)]}:
            pass
        case _:
            raise HeaderError(f"tensor {name!r} must have dtype, shape and data_offsets")
    if dtype not in DTYPE_BITS:
        raise HeaderError(f"tensor {name!r} has unknown dtype {dtype!r}")
    if len(shape) > _MAX_DIMENSIONS:
        raise HeaderError(f"tensor {name!r} has {len(shape)} dimensions, expected at most {_MAX_DIMENSIONS}")
    if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in shape):
        raise HeaderError(f"tensor {name!r} has shape {shape!r}, expected non-negative integers")
    expected, rest = divmod(math.prod(shape) * DTYPE_BITS[dtype], 8)
    if rest:
        raise HeaderError(f"tensor {name!r} of shape {shape} and dtype {dtype} does not fill whole bytes")
    if begin < 0 or end - begin != expected:
        raise HeaderError(
            f"tensor {name!r} of shape {shape} and dtype {dtype} needs {expected} bytes,"
            f" but its data_offsets are [{begin}, {end}]"
        )
    return TensorInfo(dtype, tuple(shape), begin, end)


def _check_coverage(ordered: Mapping[str, TensorInfo], data_bytes: int) -> None:
    reached = 0
    for name, info in ordered.items():
        if info.begin != reached:
            raise HeaderError(f"tensor {name!r} begins at byte {info.begin}, expected {reached}")
        reached = info.end
    if reached != data_bytes:
        raise HeaderError(f"its tensors need {reached} bytes of data, but the file holds {data_bytes}")
