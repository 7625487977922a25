"""Products with 4-bit weights on CUDA: what the kernel needs of its arguments, and its launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import triton

from kernels.quantization.triton_kernels import w4a16_kernel
from kernels.quantization.weight import QuantizedWeight

BLOCK_N: Final = 64
BLOCKS_M: Final = (16, 64)
"""Of rows: decode steps, and prompts. 16 is the least that the tensor cores take."""


@dataclass(frozen=True, slots=True)
class DeviceMatrix:
    """4-bit weights as the kernel reads them.

    Attributes:
        codes: int32 [in / 8, out]. scales: [groups, out]. zeros: uint8 [groups, out], or None.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None

    @classmethod
    def of(cls, weight: QuantizedWeight, device: torch.device) -> DeviceMatrix:
        """Raises ValueError for other than 4 bits in groups of 32, 64 or 128."""
        if weight.bits != 4 or weight.group not in (32, 64, 128):
            raise ValueError(
                f"weights of {weight.bits} bits in groups of {weight.group}: the kernel takes 4 bits in "
                "groups of 32, 64 or 128"
            )
        out, inner = weight.shape
        parts = weight.codes.to(torch.int32).T.reshape(inner // 8, 8, out)
        words = torch.zeros(inner // 8, out, dtype=torch.int32)
        for place in range(8):
            words |= parts[:, place] << (4 * place)
        zeros = None if weight.zeros is None else weight.zeros.T.contiguous().to(device)
        return cls(words.to(device), weight.scales.T.contiguous().to(device), zeros)


def linear(
    x: torch.Tensor,
    matrix: DeviceMatrix,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    *,
    wide: bool = False,
) -> torch.Tensor:
    """`kernels.quantization.linear` in one launch. Raises ValueError for arguments that do not fit."""
    inner, columns = 8 * matrix.codes.shape[0], matrix.codes.shape[1]
    if x.dim() != 2 or x.shape[1] != inner or x.stride(1) != 1:
        raise ValueError(
            f"x has shape {list(x.shape)} and strides {x.stride()}; expected [rows, {inner}], the last "
            "dimension contiguous"
        )
    rows = x.shape[0]
    if residual is not None and (residual.shape != (rows, columns) or not residual.is_contiguous()):
        raise ValueError(
            f"residual has shape {list(residual.shape)}; expected [{rows}, {columns}], contiguous"
        )
    if bias is not None and bias.shape != (columns,):
        raise ValueError(f"bias has shape {list(bias.shape)}; expected [{columns}]")
    out = x.new_empty((rows, columns))
    block = BLOCKS_M[0] if rows <= BLOCKS_M[0] else BLOCKS_M[1]
    if rows:
        w4a16_kernel[(triton.cdiv(columns, BLOCK_N), triton.cdiv(rows, block))](
            x, x.stride(0), matrix.codes, matrix.scales,
            matrix.codes if matrix.zeros is None else matrix.zeros,
            x if bias is None else bias, x if residual is None else residual, out, rows,
            INNER=inner, COLUMNS=columns, GROUP=inner // matrix.scales.shape[0],
            ZEROS=matrix.zeros is not None, BIAS=bias is not None, RESIDUAL=residual is not None,
            BLOCK_M=block, BLOCK_N=BLOCK_N, WIDE=wide,
        )  # fmt: skip
    return out
