"""Weights of 4, 8 or 16 bits in the native loops' layout: blocks of 16 outputs, read sequentially."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Final

import torch

from kernels import native

SHIFT: Final = 8
"""Subtracted from 4-bit codes: the loops decode nibbles as -8 to 7, and zeros are relative to that."""


class MatrixView(ctypes.Structure):
    """`Matrix` of kernels/native/quantized.h."""

    _fields_ = (
        ("codes", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("zeros", ctypes.c_void_p),
        ("bits", ctypes.c_int64),
        ("group", ctypes.c_int64),
        ("half", ctypes.c_int64),
    )


@dataclass(frozen=True, slots=True)
class NativeMatrix:
    """One layer's weights.

    Attributes:
        codes: for 16 bits the result of `native.pack`; for 4 bits int32 [blocks, in / 8, 16]; for 8 bits int8
            [blocks, in / 2, 2, 16].
        scales: bf16 or fp16 [blocks, groups, 16]; None for 16 bits.
        zeros: int8 [blocks, groups, 16], None where all are zero (for 4 bits: where all codes' zeros are 8).
        columns, inner: the layer's outputs and inputs.
    """

    codes: torch.Tensor
    scales: torch.Tensor | None
    zeros: torch.Tensor | None
    bits: int
    columns: int
    inner: int

    @property
    def group(self) -> int:
        return self.inner if self.scales is None else self.inner // self.scales.shape[1]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self.codes, self.scales, self.zeros) if part is not None)

    def view(self) -> MatrixView:
        """Return the C view with addresses that are valid while this object lives."""
        scales, zeros = self.scales, self.zeros
        return MatrixView(
            self.codes.data_ptr(),
            None if scales is None else scales.data_ptr(),
            None if zeros is None else zeros.data_ptr(),
            self.bits,
            self.group,
            scales is not None and scales.dtype == torch.float16,
        )

    def check(self) -> None:
        """Raise ValueError for inconsistent parts, because the native code checks nothing."""
        blocks = -(-self.columns // native.LANES)
        lines = (blocks, self.inner // self.group if self.group else 0, native.LANES)
        dtype, shape = {
            4: (torch.int32, (blocks, self.inner // 8, native.LANES)),
            8: (torch.int8, (blocks, self.inner // 2, 2, native.LANES)),
            16: (torch.bfloat16, (blocks, self.inner // 2, native.LANES, 2)),
        }[self.bits]
        _demand("codes", self.codes, (dtype,), shape)
        if self.inner % (8 if self.bits == 4 else 2) or self.inner % self.group:
            raise ValueError(f"{self.inner} inputs in groups of {self.group} do not fit {self.bits} bits")
        if self.bits == 16:
            return
        if self.scales is None or self.group % (8 if self.bits == 4 else 2):
            raise ValueError(f"groups of {self.group} inputs do not fit {self.bits} bits")
        _demand("scales", self.scales, (torch.bfloat16, torch.float16), lines)
        if self.zeros is not None:
            _demand("zeros", self.zeros, (torch.int8,), lines)


def pack_codes(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack uint8 0 to 15 [out, in] or int8 [out, in] to `NativeMatrix.codes`, padding the last block."""
    codes = _filled(codes, SHIFT if bits == 4 else 0)
    blocks, inner = codes.shape[0] // native.LANES, codes.shape[1]
    if bits == 8:
        return codes.view(blocks, native.LANES, inner // 2, 2).permute(0, 2, 3, 1).contiguous()
    parts = codes.view(blocks, native.LANES, inner // 8, 4, 2).transpose(1, 2)
    words = torch.zeros(parts.shape[:3], dtype=torch.int32)
    for pair in range(4):
        for half in range(2):
            words |= parts[..., pair, half].int() << (4 * pair + 16 * half)
    return words.contiguous()


def unpack_codes(packed: torch.Tensor, bits: int, out: int) -> torch.Tensor:
    """Return the codes [out, in] that `pack_codes` packed."""
    if bits == 8:
        return packed.permute(0, 3, 1, 2).flatten(0, 1).flatten(1)[:out].contiguous()
    shifts = torch.tensor([[4 * pair + 16 * half for half in range(2)] for pair in range(4)])
    nibbles = (packed.transpose(1, 2)[..., None, None] >> shifts.int()) & 15
    return nibbles.to(torch.uint8).flatten(0, 1).flatten(1)[:out].contiguous()


def pack_lines(lines: torch.Tensor) -> torch.Tensor:
    """Pack [out, groups] to [blocks, groups, 16], zero-padded."""
    lines = _filled(lines, 0)
    return lines.view(-1, native.LANES, lines.shape[1]).transpose(1, 2).contiguous()


def unpack_lines(packed: torch.Tensor, out: int) -> torch.Tensor:
    """Return the values [out, groups] that `pack_lines` packed."""
    return packed.transpose(1, 2).flatten(0, 1)[:out].contiguous()


def multiply(
    x: torch.Tensor, matrix: NativeMatrix, bias: torch.Tensor | None, residual: torch.Tensor | None
) -> torch.Tensor:
    """Map bf16 x [rows, in], last dimension contiguous, to [rows, columns], plus bias and residual, rounded
    once.

    Raises:
        ValueError: x or residual that would be read out of bounds.
    """
    rows, inner = x.shape
    if inner != matrix.inner or x.stride(1) != 1 or x.dtype != torch.bfloat16:
        raise ValueError(
            f"x has shape {list(x.shape)}, {x.dtype}; expected bfloat16 [rows, {matrix.inner}], "
            "the last dimension contiguous"
        )
    if residual is not None and (residual.shape != (rows, matrix.columns) or not residual.is_contiguous()):
        raise ValueError(
            f"residual has shape {list(residual.shape)}; expected [{rows}, {matrix.columns}], contiguous"
        )
    out = torch.empty((rows, matrix.columns), dtype=x.dtype)
    view = matrix.view()
    native.LIBRARY.graft_matrix(  # type: ignore[union-attr]
        x.data_ptr(),
        x.stride(0),
        ctypes.addressof(view),
        None if bias is None else bias.data_ptr(),
        None if residual is None else residual.data_ptr(),
        out.data_ptr(),
        rows,
        inner,
        matrix.columns,
        torch.get_num_threads(),
    )
    return out


def _filled(lines: torch.Tensor, value: int) -> torch.Tensor:
    missing = -lines.shape[0] % native.LANES
    return torch.cat((lines, lines.new_full((missing, lines.shape[1]), value))) if missing else lines


def _demand(name: str, tensor: torch.Tensor, dtypes: tuple[torch.dtype, ...], shape: tuple[int, ...]) -> None:
    if (
        tensor.dtype not in dtypes
        or tuple(tensor.shape) != shape
        or not tensor.is_contiguous()
        or not tensor.is_cpu
    ):
        found = f"{list(tensor.shape)}, {tensor.dtype} on {tensor.device}"
        raise ValueError(f"{name} is {found}; expected {list(shape)}, {dtypes[0]}, contiguous on a CPU")
