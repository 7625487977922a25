"""W4A16: codes are widened in registers, products are the tensor cores', scales and zeros enter by group."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def w4a16_kernel(
    x,
    x_stride,
    codes,
    scales,
    zeros,
    bias,
    residual,
    out,
    rows,
    INNER: tl.constexpr,
    COLUMNS: tl.constexpr,
    GROUP: tl.constexpr,
    ZEROS: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Grid (blocks of columns, blocks of rows).

    codes int32 [INNER / 8, COLUMNS], the n-th nibble from below of input 8 i + n; scales [groups, COLUMNS],
    zeros uint8 of the same shape. WIDE: products in float32, for the interpreter and for checks.
    """
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    lines = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside, live = columns < COLUMNS, lines < rows
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    words = tl.arange(0, GROUP // 8)
    inputs = tl.arange(0, GROUP)
    shifts = (tl.arange(0, 8) * 4)[None, :, None]
    source = x + lines.to(tl.int64)[:, None] * x_stride
    for group in range(INNER // GROUP):
        at = (group * (GROUP // 8) + words)[:, None] * COLUMNS + columns[None, :]
        packed = tl.load(codes + at, mask=inside[None, :], other=0)
        spread = (packed[:, None, :] >> shifts) & 15
        whole = tl.reshape(spread, (GROUP, BLOCK_N)).to(tl.float32)
        if ZEROS:
            own = tl.load(zeros + group * COLUMNS + columns, mask=inside, other=0)
            whole -= own.to(tl.float32)[None, :]
        else:
            whole -= 8
        part = tl.load(source + group * GROUP + inputs[None, :], mask=live[:, None], other=0.0)
        if WIDE:
            sums = tl.dot(part.to(tl.float32), whole, input_precision="ieee")
        else:
            # Whole numbers from -15 to 15: x's dtype holds them exactly.
            sums = tl.dot(part, whole.to(part.dtype))
        scale = tl.load(scales + group * COLUMNS + columns, mask=inside, other=0.0)
        total += sums * scale.to(tl.float32)[None, :]
    place = lines.to(tl.int64)[:, None] * COLUMNS + columns[None, :]
    mask = live[:, None] & inside[None, :]
    if BIAS:
        total += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
    if RESIDUAL:
        total += tl.load(residual + place, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=mask)
