"""Reads a GGUF file: its key-value pairs, and its tensors as 32-bit floats.

It supports version 3, little-endian, with tensors of types F32, Q4_1 and Q8_0.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from demo.errors import ModelSetupError

Floats = np.ndarray[Any, np.dtype[np.float32]]

_MAGIC: Final = b"GGUF"
_VERSION: Final = 3
_ALIGNMENT: Final = 32
_SCALARS: Final = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_STRING: Final = 8
_ARRAY: Final = 9
_BLOCK: Final = 32
"""Weights that share a scale."""
_TYPES: Final[dict[int, np.dtype[Any]]] = {
    0: np.dtype("<f4"),
    3: np.dtype([("scale", "<f2"), ("low", "<f2"), ("nibbles", "u1", _BLOCK // 2)]),
    8: np.dtype([("scale", "<f2"), ("values", "i1", _BLOCK)]),
}
"""Storage of a tensor type: F32, Q4_1, Q8_0."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor's name, shape (rows first) and stored data."""

    name: str
    shape: tuple[int, ...]
    data: np.ndarray[Any, Any]

    def floats(self) -> Floats:
        """Return the weights, dequantized."""
        return _dequantized(self.data).reshape(self.shape)


class GgufFile:
    """An opened GGUF file. `facts` are its key-value pairs.

    Raises:
        ModelSetupError: it is no GGUF file of a supported version, or has a tensor of an unsupported type.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._bytes = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        self._at = len(_MAGIC)
        version = self._scalar("I")
        if bytes(self._bytes[: len(_MAGIC)]) != _MAGIC or version != _VERSION:
            raise ModelSetupError(f"{path} is no GGUF file of version {_VERSION}")
        tensors, pairs = self._scalar("Q"), self._scalar("Q")
        self.facts = {self._string(): self._value(self._scalar("I")) for _ in range(pairs)}
        self._entries = [self._entry() for _ in range(tensors)]
        self._data_at = -(-self._at // _ALIGNMENT) * _ALIGNMENT

    def tensors(self) -> Iterator[Tensor]:
        """Yield the tensors in the order of the file."""
        for name, shape, kind, offset in self._entries:
            if (stored := _TYPES.get(kind)) is None:
                raise ModelSetupError(f"the tensor {name} has GGUF type {kind}, which is not supported")
            blocks = int(np.prod(shape)) // (1 if kind == 0 else _BLOCK)
            data = np.frombuffer(self._bytes, stored, count=blocks, offset=self._data_at + offset)
            yield Tensor(name, shape, data)

    def _entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        # The fastest dimension comes first in the file.
        shape = tuple(reversed([self._scalar("Q") for _ in range(self._scalar("I"))]))
        return name, shape, self._scalar("I"), self._scalar("Q")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            of, count = self._scalar("I"), self._scalar("Q")
            return [self._value(of) for _ in range(count)]
        return self._scalar(_SCALARS[kind])

    def _scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self._bytes, self._at)
        self._at += struct.calcsize(f"<{code}")
        return value

    def _string(self) -> str:
        start = self._at + 8
        self._at = start + self._scalar("Q")
        return str(self._bytes[start : self._at], "utf-8")


def _dequantized(data: np.ndarray[Any, Any]) -> Floats:
    fields = data.dtype.names
    if fields is None:
        return data.astype(np.float32)
    scale = data["scale"].astype(np.float32)[:, None]
    if "values" in fields:
        return (data["values"].astype(np.float32) * scale).ravel()
    # A block's first half is in the low nibbles, its second in the high ones.
    low, high = data["nibbles"] & 15, data["nibbles"] >> 4
    values = np.concatenate((low, high), axis=1).astype(np.float32)
    return (values * scale + data["low"].astype(np.float32)[:, None]).ravel()
