"""Products in E4M3 on CUDA: rows are rounded in one launch, multiplied in the next."""

from __future__ import annotations

from typing import Final

import torch
import triton

from kernels.quantization.fp8_kernels import fp8_kernel, quantize_rows_kernel
from kernels.quantization.fp8_matrix import Fp8Matrix
from kernels.quantization.gpu import combine, demand, parts_of

BLOCK_N: Final = 64
BLOCK_K: Final = 128
"""Inputs whose products are summed up in the tensor cores alone."""
BLOCKS_M: Final = (16, 64)
"""Of rows: decode steps, and prompts. From 64 on sm_90 takes its own, faster products."""
BLOCK: Final = 2048
"""Inputs of a row that are looked at together."""


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [rows, in], last dimension contiguous -> E4M3 [rows, in] and float32 [rows]: as the reference."""
    rows, inner = x.shape
    codes = torch.empty((rows, inner), dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(rows, dtype=torch.float32, device=x.device)
    if rows:
        block = min(BLOCK, triton.next_power_of_2(inner))
        bits = codes.view(torch.uint8)
        quantize_rows_kernel[(rows,)](x, x.stride(0), bits, scales, INNER=inner, BLOCK=block)
    return codes, scales


def linear(
    x: torch.Tensor, matrix: Fp8Matrix, bias: torch.Tensor | None = None, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """`kernels.quantization.linear` of weights in E4M3. Raises ValueError for arguments that do not fit."""
    demand(x, matrix.inner, matrix.columns, bias, residual)
    rows, columns = x.shape[0], matrix.columns
    out = x.new_empty((rows, columns))
    if rows == 0:
        return out
    codes, scales = quantize_rows(x)
    block = BLOCKS_M[0] if rows <= BLOCKS_M[0] else BLOCKS_M[1]
    grid = (triton.cdiv(columns, BLOCK_N), triton.cdiv(rows, block))
    units = triton.cdiv(matrix.inner, BLOCK_K)
    parts = parts_of(units, grid[0] * grid[1])
    alone = parts == 1
    target = out if alone else x.new_empty((parts, rows, columns), dtype=torch.float32)
    fp8_kernel[(*grid, parts)](
        codes,
        scales,
        matrix.codes,
        matrix.scales,
        x if bias is None else bias,
        x if residual is None else residual,
        target,
        rows,
        INNER=matrix.inner,
        COLUMNS=columns,
        EACH=units // parts,
        BIAS=alone and bias is not None,
        RESIDUAL=alone and residual is not None,
        BLOCK_M=block,
        BLOCK_N=BLOCK_N,
        BLOCK_K=BLOCK_K,
    )
    if not alone:
        combine(target, out, bias, residual)
    return out
