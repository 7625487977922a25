"""W4A16: codes are widened in registers, scales and zeros enter by group, sums are float32. MXFP4 likewise.

Where a layer has too few blocks of columns to fill a GPU, its inputs are dealt out to several programs, whose
sums `combine_kernel` adds up in their order: the same bits each time.
"""

from __future__ import annotations

import triton
import triton.language as tl

TWO_TO_23: tl.constexpr = tl.constexpr(8388608.0)
"""The float32 whose mantissa's lowest bit counts 1: a code or-ed into its bits is added to it."""
BITS_OF_IT: tl.constexpr = tl.constexpr(0x4B000000)


@triton.jit
def _of_e2m1(codes):
    """int32 0 to 15 -> float32: sign, exponent and mantissa in float16's places are 2^14 times too small."""
    bits = ((codes & 7) << 9) | ((codes & 8) << 12)
    return bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * 16384.0


@triton.jit(do_not_specialize=["rows"])
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
    EACH: tl.constexpr,
    ZEROS: tl.constexpr,
    FLOATS: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Grid (blocks of columns, blocks of rows, parts of EACH groups).

    codes, scales and zeros as in `DeviceMatrix`. Of several parts `out` is float32 [parts, rows, COLUMNS].
    WIDE: products in float32, for x in float32 and for the interpreter.
    """
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    lines = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    part = tl.program_id(2)
    inside, live = columns < COLUMNS, lines < rows
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    words = tl.arange(0, GROUP // 8)
    inputs = tl.arange(0, GROUP)
    shifts = (tl.arange(0, 8) * 4)[None, :, None]
    source = x + lines.to(tl.int64)[:, None] * x_stride
    for step in range(EACH):
        group = part * EACH + step
        at = (group * (GROUP // 8) + words)[:, None] * COLUMNS + columns[None, :]
        packed = tl.load(codes + at, mask=inside[None, :], other=0)
        spread = (packed[:, None, :] >> shifts) & 15
        if FLOATS:
            whole = _of_e2m1(tl.reshape(spread, (GROUP, BLOCK_N)))
        elif ZEROS:
            own = tl.load(zeros + group * COLUMNS + columns, mask=inside, other=0)
            whole = tl.reshape(spread, (GROUP, BLOCK_N)).to(tl.float32) - own.to(tl.float32)[None, :]
        else:
            whole = tl.reshape(spread, (GROUP, BLOCK_N)).to(tl.float32) - 8
        given = tl.load(source + group * GROUP + inputs[None, :], mask=live[:, None], other=0.0)
        if WIDE:
            sums = tl.dot(given.to(tl.float32), whole, input_precision="ieee")
        else:
            # Whole numbers from -15 to 15, or E2M1's: x's dtype holds them exactly.
            sums = tl.dot(given, whole.to(given.dtype))
        scale = tl.load(scales + group * COLUMNS + columns, mask=inside, other=0.0)
        total += sums * scale.to(tl.float32)[None, :]
    place = lines.to(tl.int64)[:, None] * COLUMNS + columns[None, :]
    mask = live[:, None] & inside[None, :]
    if BIAS:
        total += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
    if RESIDUAL:
        total += tl.load(residual + place, mask=mask, other=0.0).to(tl.float32)
    first = part.to(tl.int64) * rows * COLUMNS
    tl.store(out + first + place, total.to(out.dtype.element_ty), mask=mask)


@triton.jit
def w4a16_row_kernel(
    x,
    codes,
    scales,
    zeros,
    bias,
    residual,
    out,
    INNER: tl.constexpr,
    COLUMNS: tl.constexpr,
    GROUP: tl.constexpr,
    EACH: tl.constexpr,
    ZEROS: tl.constexpr,
    FLOATS: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BLOCK_WORDS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One row, too few products for the tensor cores. Grid (blocks of columns, parts of EACH tiles).

    A tile is BLOCK_WORDS words of eight inputs by BLOCK_N columns. A code is widened where it stands in its
    half of the word, by one logical operation: 2^23 with it in the mantissa is 2^23 + code * 16^place. Less
    2^23 and zero * 16^place it is exact, and x is divided by 16^place beforehand. FLOATS: codes are E2M1's.
    """
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    part = tl.program_id(1)
    inside = columns < COLUMNS
    places = tl.arange(0, 8)
    halves, lifts = (places // 4) * 16, 1 << ((places % 4) * 4)
    masks = lifts * 15
    up = lifts.to(tl.float32)
    shifts = places * 4
    sums = tl.zeros((BLOCK_WORDS, BLOCK_N), dtype=tl.float32)
    for step in range(EACH):
        words = (part * EACH + step) * BLOCK_WORDS + tl.arange(0, BLOCK_WORDS)
        live = words < INNER // 8
        both = live[:, None] & inside[None, :]
        packed = tl.load(codes + words[:, None] * COLUMNS + columns[None, :], mask=both, other=0)
        given = tl.load(x + words[:, None] * 8 + places[None, :], mask=live[:, None], other=0.0)
        lines = (words // (GROUP // 8))[:, None] * COLUMNS + columns[None, :]
        if FLOATS:
            raised = _of_e2m1((packed[:, None, :] >> shifts[None, :, None]) & 15)
            lowered = given.to(tl.float32)
        else:
            if ZEROS:
                own = tl.load(zeros + lines, mask=both, other=0).to(tl.float32)
                base = own[:, None, :] * up[None, :, None] + TWO_TO_23
            else:
                base = (8.0 * up + TWO_TO_23)[None, :, None]
            spread = (packed[:, None, :] >> halves[None, :, None]) & masks[None, :, None]
            raised = (spread | BITS_OF_IT).to(tl.float32, bitcast=True) - base
            lowered = given.to(tl.float32) / up[None, :]
        scale = tl.load(scales + lines, mask=both, other=0.0).to(tl.float32)
        sums += tl.sum(raised * lowered[:, :, None], axis=1) * scale
    total = tl.sum(sums, axis=0)
    if BIAS:
        total += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    if RESIDUAL:
        total += tl.load(residual + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + part * COLUMNS + columns, total.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def combine_kernel(
    sums,
    bias,
    residual,
    out,
    rows,
    COLUMNS: tl.constexpr,
    PARTS: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """sums float32 [PARTS, rows, COLUMNS] -> out [rows, COLUMNS]. Grid (blocks of outputs)."""
    size = rows * COLUMNS
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = places < size
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for part in range(PARTS):
        total += tl.load(sums + part * size + places, mask=live, other=0.0)
    if BIAS:
        total += tl.load(bias + places % COLUMNS, mask=live, other=0.0).to(tl.float32)
    if RESIDUAL:
        total += tl.load(residual + places, mask=live, other=0.0).to(tl.float32)
    tl.store(out + places, total.to(out.dtype.element_ty), mask=live)
