"""What one block does: shrink or expand one entry of the worklist. The kernels of `launch.py` call these.

Types: x, the weights and out have one dtype, products accumulate in float32, the shrunk activations stay
float32. A block of one row multiplies without tensor cores, whose least tile has 16 rows: it would read
no less and compute 16 times as much. In tensor core blocks the shrunk activations are rounded to the
weights' dtype, as two GEMMs of torch would.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def shrink_block(
    item,
    x,
    x_stride,
    row_index,
    memory,
    a_offsets,
    scale,
    shrunk,
    inner_blocks,
    INNER: tl.constexpr,
    ROWS: tl.constexpr,
    RANKS: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    EVEN_INNER: tl.constexpr,
    ALIGNED: tl.constexpr,
    ATOMIC: tl.constexpr,
):
    """shrunk[rows, ranks] = (x[rows, part of inner] A[ranks, part of inner]^T) * scale[ranks]."""
    row_first = tl.load(item)
    row_count = tl.load(item + 1)
    rank_first = tl.load(item + 2)
    rank_count = tl.load(item + 3)
    base = tl.load(item + 4)
    stride = tl.load(item + 5)
    # Not loaded but computed, so that the compiler sees that the part starts on a whole block.
    first = tl.load(item + 6) * inner_blocks * BLOCK_INNER
    last = tl.minimum(first + inner_blocks * BLOCK_INNER, INNER)

    ranks = tl.arange(0, RANKS)
    live = ranks < rank_count
    offsets = tl.load(a_offsets + rank_first + ranks, mask=live, other=0)
    if ALIGNED:
        offsets = tl.multiple_of(offsets, [8])
    factor = tl.load(scale + rank_first + ranks, mask=live, other=0.0)
    columns = tl.arange(0, BLOCK_INNER)

    if ROWS == 1:
        row = tl.load(row_index + row_first).to(tl.int64)
        x_row = x + row * x_stride
        partial = tl.zeros((RANKS, BLOCK_INNER), dtype=tl.float32)
        for k in range(first, last, BLOCK_INNER):
            inner = k + columns
            if EVEN_INNER:
                x_tile = tl.load(x_row + inner)
                a_tile = tl.load(memory + offsets[:, None] + inner[None, :], mask=live[:, None], other=0.0)
            else:
                inside = inner < INNER
                x_tile = tl.load(x_row + inner, mask=inside, other=0.0)
                a_tile = tl.load(
                    memory + offsets[:, None] + inner[None, :],
                    mask=live[:, None] & inside[None, :],
                    other=0.0,
                )
            partial += a_tile.to(tl.float32) * x_tile.to(tl.float32)[None, :]
        total = tl.sum(partial, axis=1) * factor
        if ATOMIC:
            tl.atomic_add(shrunk + base + ranks, total, mask=live, sem="relaxed")
        else:
            tl.store(shrunk + base + ranks, total, mask=live)
    else:
        rows = tl.arange(0, ROWS)
        present = rows < row_count
        row = tl.load(row_index + row_first + rows, mask=present, other=0).to(tl.int64)
        x_rows = x + row[:, None] * x_stride
        products = tl.zeros((ROWS, RANKS), dtype=tl.float32)
        for k in range(first, last, BLOCK_INNER):
            inner = k + columns
            if EVEN_INNER:
                x_tile = tl.load(x_rows + inner[None, :], mask=present[:, None], other=0.0)
                a_tile = tl.load(memory + offsets[:, None] + inner[None, :], mask=live[:, None], other=0.0)
            else:
                inside = inner < INNER
                x_tile = tl.load(x_rows + inner[None, :], mask=present[:, None] & inside[None, :], other=0.0)
                a_tile = tl.load(
                    memory + offsets[:, None] + inner[None, :],
                    mask=live[:, None] & inside[None, :],
                    other=0.0,
                )
            products = tl.dot(x_tile, tl.trans(a_tile), products, input_precision="ieee")
        products *= factor[None, :]
        place = shrunk + base + rows[:, None] * stride + ranks[None, :]
        mask = present[:, None] & live[None, :]
        if ATOMIC:
            tl.atomic_add(place, products, mask=mask, sem="relaxed")
        else:
            tl.store(place, products, mask=mask)


@triton.jit
def load_b(
    memory,
    b_offsets,
    rank_first,
    rank_count,
    start,
    column,
    inside,
    RANKS: tl.constexpr,
    EVEN_OUTER: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """B[ranks from start, columns of the block]; zero past the last rank."""
    ranks = start + tl.arange(0, RANKS)
    live = ranks < rank_count
    offsets = tl.load(b_offsets + rank_first + ranks, mask=live, other=0)
    if ALIGNED:
        offsets = tl.multiple_of(offsets, [8])
    mask = live[:, None]
    if not EVEN_OUTER:
        mask = mask & inside[None, :]
    return tl.load(memory + offsets[:, None] + column[None, :], mask=mask, other=0.0)


@triton.jit
def expand_block(  # noqa: C901 - branches of constexpr, of which one is compiled
    item,
    out,
    out_stride,
    row_index,
    memory,
    b_offsets,
    shrunk,
    splits,
    flags,
    gain,
    gain_stride,
    bias,
    ROWS: tl.constexpr,
    RANKS: tl.constexpr,
    BLOCK_OUTER: tl.constexpr,
    EVEN_OUTER: tl.constexpr,
    ALIGNED: tl.constexpr,
    GAIN: tl.constexpr,
    BIAS: tl.constexpr,
    AFTER_FLAG: tl.constexpr,
    AFTER_GRID: tl.constexpr,
):
    """out[rows, columns] += (sum of the parts of shrunk[rows, :]) B[:, columns], times the gain if any.

    B's first ranks are requested before the block waits for the shrink, which does not change them.
    """
    row_first = tl.load(item)
    row_count = tl.load(item + 1)
    rank_first = tl.load(item + 2)
    rank_count = tl.load(item + 3)
    base = tl.load(item + 4)
    stride = tl.load(item + 5)
    split_stride = tl.load(item + 6)
    column_first = tl.load(item + 7)
    column_count = tl.load(item + 8)
    column_in_slice = tl.load(item + 12)
    if ALIGNED:
        column_first = tl.multiple_of(column_first, 8)
        column_in_slice = tl.multiple_of(column_in_slice, 8)
    lanes = tl.arange(0, BLOCK_OUTER)
    inside = lanes < column_count
    column = column_in_slice + lanes

    b_tile = load_b(memory, b_offsets, rank_first, rank_count, 0, column, inside, RANKS, EVEN_OUTER, ALIGNED)
    if AFTER_GRID:
        gdc_wait()
    if AFTER_FLAG:
        flag = flags + tl.load(item + 9)
        target = tl.load(item + 10)
        while tl.atomic_add(flag, 0, sem="acquire", scope="gpu") < target:
            pass

    # Past L1 (.cg): other blocks wrote these values, and L1 is not kept coherent.
    if ROWS == 1:
        partial = tl.zeros((RANKS, BLOCK_OUTER), dtype=tl.float32)
        for start in range(0, rank_count, RANKS):
            ranks = start + tl.arange(0, RANKS)
            live = ranks < rank_count
            total = tl.zeros((RANKS,), dtype=tl.float32)
            for split in range(splits):
                place = shrunk + base + split * split_stride + ranks
                total += tl.load(place, mask=live, other=0.0, cache_modifier=".cg")
            partial += b_tile.to(tl.float32) * total[:, None]
            b_tile = load_b(
                memory,
                b_offsets,
                rank_first,
                rank_count,
                start + RANKS,
                column,
                inside,
                RANKS,
                EVEN_OUTER,
                ALIGNED,
            )
        delta = tl.sum(partial, axis=0)[None, :]
    else:
        delta = tl.zeros((ROWS, BLOCK_OUTER), dtype=tl.float32)
        lines = tl.arange(0, ROWS)
        for start in range(0, rank_count, RANKS):
            ranks = start + tl.arange(0, RANKS)
            mask = (lines < row_count)[:, None] & (ranks < rank_count)[None, :]
            sums = tl.zeros((ROWS, RANKS), dtype=tl.float32)
            for split in range(splits):
                place = shrunk + base + split * split_stride + lines[:, None] * stride + ranks[None, :]
                sums += tl.load(place, mask=mask, other=0.0, cache_modifier=".cg")
            delta = tl.dot(sums.to(b_tile.dtype), b_tile, delta, input_precision="ieee")
            b_tile = load_b(
                memory,
                b_offsets,
                rank_first,
                rank_count,
                start + RANKS,
                column,
                inside,
                RANKS,
                EVEN_OUTER,
                ALIGNED,
            )

    rows = tl.arange(0, ROWS)
    mask = (rows < row_count)[:, None]
    if not EVEN_OUTER:
        mask = mask & inside[None, :]
    row = tl.load(row_index + row_first + rows, mask=rows < row_count, other=0).to(tl.int64)
    place = out + row[:, None] * out_stride + (column_first + lanes)[None, :]
    result = tl.load(place, mask=mask, other=0.0).to(tl.float32)
    if GAIN:
        if BIAS:
            shift = tl.load(bias + column_first + lanes, mask=inside, other=0.0).to(tl.float32)[None, :]
        else:
            shift = tl.zeros((1, BLOCK_OUTER), dtype=tl.float32)
        adapter = tl.load(item + 11).to(tl.int64)
        factor = tl.load(gain + adapter * gain_stride + column_first + lanes, mask=inside, other=0.0)
        result = (result - shift + delta) * factor[None, :] + shift
    else:
        result += delta
    tl.store(place, result.to(out.dtype.element_ty), mask=mask)


@triton.jit
def release(flags, item):
    """Tells waiting blocks that this one's shrunk values are in memory."""
    tl.debug_barrier()
    tl.atomic_add(flags + tl.load(item + 9), 1, sem="release", scope="gpu")


@triton.jit
def launch_dependents():
    """Lets the expand's grid start while this one still runs; sm_90 and later."""
    gdc_launch_dependents()
