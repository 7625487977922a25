"""W8A8 in E4M3: rows of x are rounded to eight bits, each with its own scale, and multiplied so."""

from __future__ import annotations

import triton
import triton.language as tl

LARGEST: tl.constexpr = tl.constexpr(448.0)
LEAST_NORMAL: tl.constexpr = tl.constexpr(0x3C800000)
"""2^-6 as float32's bits."""
TWO_TO_23: tl.constexpr = tl.constexpr(8388608.0)


@triton.jit
def _to_e4m3(value):
    """float32 of at most 448 -> uint8, the code of the nearest number of E4M3, ties to even; NaN stays NaN.

    By whole numbers: implementations of the conversion differ in how they round, and in NaN.
    """
    bits = value.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    # Three bits of mantissa are left of 23, and the exponent counts from -7 instead of -127.
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - 960
    # Below, numbers are multiples of 2^-9: a sum with 2^23 has none of its bits behind the point.
    small = (tl.abs(value) * 512.0 + TWO_TO_23).to(tl.int32, bitcast=True) & 255
    code = tl.where(size < LEAST_NORMAL, small, normal)
    code = tl.where(value == value, code, 127)
    return (code | ((bits >> 24) & 128)).to(tl.uint8)


@triton.jit
def quantize_rows_kernel(x, x_stride, codes, scales, INNER: tl.constexpr, BLOCK: tl.constexpr):
    """x [rows, INNER] -> codes E4M3 as uint8 [rows, INNER], scales float32 [rows]. Grid (rows)."""
    row = tl.program_id(0).to(tl.int64)
    largest = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, INNER, BLOCK):
        inputs = start + tl.arange(0, BLOCK)
        given = tl.load(x + row * x_stride + inputs, mask=inputs < INNER, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.abs(given))
    most = tl.max(largest, axis=0)
    scale = tl.where(most > 0, tl.div_rn(most, LARGEST), 1.0)
    tl.store(scales + row, scale)
    for start in range(0, INNER, BLOCK):
        inputs = start + tl.arange(0, BLOCK)
        given = tl.load(x + row * x_stride + inputs, mask=inputs < INNER, other=0.0).to(tl.float32)
        code = _to_e4m3(tl.div_rn(given, tl.zeros_like(given) + scale))
        tl.store(codes + row * INNER + inputs, code, mask=inputs < INNER)


@triton.jit(do_not_specialize=["rows"])
def fp8_kernel(
    x,
    x_scales,
    codes,
    scales,
    bias,
    residual,
    out,
    rows,
    INNER: tl.constexpr,
    COLUMNS: tl.constexpr,
    EACH: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Grid (blocks of columns, blocks of rows, parts of EACH blocks of inputs).

    x E4M3 [rows, INNER], codes E4M3 [COLUMNS, INNER], a scale for each row and each column. Of several parts
    `out` is float32 [parts, rows, COLUMNS]. A block's sums are added up in float32: sm_90's tensor cores keep
    fewer bits of long ones.
    """
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    lines = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    part = tl.program_id(2)
    inside, live = columns < COLUMNS, lines < rows
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(EACH):
        inputs = (part * EACH + step) * BLOCK_K + tl.arange(0, BLOCK_K)
        there = inputs < INNER
        given = tl.load(
            x + lines.to(tl.int64)[:, None] * INNER + inputs[None, :],
            mask=live[:, None] & there[None, :],
            other=0.0,
        )
        weight = tl.load(
            codes + columns[None, :] * INNER + inputs[:, None],
            mask=there[:, None] & inside[None, :],
            other=0.0,
        )
        total = tl.dot(given, weight, total, max_num_imprecise_acc=BLOCK_K)
    own = tl.load(x_scales + lines, mask=live, other=0.0)
    total *= own[:, None] * tl.load(scales + columns, mask=inside, other=0.0)[None, :]
    place = lines.to(tl.int64)[:, None] * COLUMNS + columns[None, :]
    mask = live[:, None] & inside[None, :]
    if BIAS:
        total += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
    if RESIDUAL:
        total += tl.load(residual + place, mask=mask, other=0.0).to(tl.float32)
    first = part.to(tl.int64) * rows * COLUMNS
    tl.store(out + first + place, total.to(out.dtype.element_ty), mask=mask)
