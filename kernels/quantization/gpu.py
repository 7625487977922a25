"""Products with 4-bit weights on CUDA: what the kernels need of their arguments, and their launches."""

from __future__ import annotations

from typing import Final

import torch
import triton

from kernels.quantization.device_matrix import DeviceMatrix
from kernels.quantization.triton_kernels import combine_kernel, w4a16_kernel, w4a16_row_kernel

__all__ = ["DeviceMatrix", "linear"]

BLOCK_N: Final = 64
"""Columns: 256 bytes of a line of words, what half a warp loads 16 bytes at a time."""
BLOCKS_M: Final = (16, 64)
"""Of rows: decode steps, and prompts. 16 is the least that the tensor cores take."""
BLOCK_WORDS: Final = 32
"""Of one row's tile: four loads of 16 bytes a thread, started together."""
PROGRAMS: Final = 512
"""About four for each multiprocessor of a large GPU: so many loads hide each other's way to memory."""
MOST_PARTS: Final = 16
COMBINED: Final = 512
"""Outputs of one program of the kernel that adds up parts."""


def parts_of(units: int, programs: int) -> int:
    """Into how many equal parts the `units` of a sum are dealt, where there are so many programs without."""
    most = min(MOST_PARTS, max(1, PROGRAMS // programs), units)
    return max(parts for parts in range(1, most + 1) if units % parts == 0)


def linear(
    x: torch.Tensor,
    matrix: DeviceMatrix,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    *,
    wide: bool | None = None,
) -> torch.Tensor:
    """`kernels.quantization.linear` in one launch or two.

    Args:
        wide: products of more than one row in float32; by default where x is.

    Raises:
        ValueError: arguments that do not fit.
    """
    demand(x, matrix.inner, matrix.columns, bias, residual)
    rows, columns = x.shape[0], matrix.columns
    out = x.new_empty((rows, columns))
    if rows == 0:
        return out
    blocks = triton.cdiv(columns, BLOCK_N)
    block = 1 if rows == 1 else BLOCKS_M[0] if rows <= BLOCKS_M[0] else BLOCKS_M[1]
    lines = triton.cdiv(rows, block)
    units = triton.cdiv(matrix.codes.shape[0], BLOCK_WORDS) if rows == 1 else matrix.scales.shape[0]
    parts = parts_of(units, blocks * lines)
    alone = parts == 1
    target = out if alone else x.new_empty((parts, rows, columns), dtype=torch.float32)
    added = (x if bias is None else bias, x if residual is None else residual)
    layer = (matrix.codes, matrix.scales, matrix.codes if matrix.zeros is None else matrix.zeros)
    constants = {
        "INNER": matrix.inner,
        "COLUMNS": columns,
        "GROUP": matrix.group,
        "EACH": units // parts,
        "ZEROS": matrix.zeros is not None,
        "FLOATS": matrix.floats,
        "BIAS": alone and bias is not None,
        "RESIDUAL": alone and residual is not None,
        "BLOCK_N": BLOCK_N,
    }
    if rows == 1:
        w4a16_row_kernel[(blocks, parts)](x, *layer, *added, target, BLOCK_WORDS=BLOCK_WORDS, **constants)
    else:
        exact = x.dtype == torch.float32 if wide is None else wide
        w4a16_kernel[(blocks, lines, parts)](
            x, x.stride(0), *layer, *added, target, rows, BLOCK_M=block, WIDE=exact, **constants
        )
    if not alone:
        combine(target, out, bias, residual)
    return out


def combine(
    sums: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor | None
) -> None:
    """Adds up sums float32 [parts, rows, columns] into out [rows, columns], with bias and residual."""
    rows, columns = out.shape
    combine_kernel[(triton.cdiv(rows * columns, COMBINED),)](
        sums,
        out if bias is None else bias,
        out if residual is None else residual,
        out,
        rows,
        COLUMNS=columns,
        PARTS=sums.shape[0],
        BIAS=bias is not None,
        RESIDUAL=residual is not None,
        BLOCK=COMBINED,
    )


def demand(
    x: torch.Tensor, inner: int, columns: int, bias: torch.Tensor | None, residual: torch.Tensor | None
) -> None:
    """Raises ValueError for arguments that would be read past their end."""
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
