"""The work of one block on one worklist entry, called by the kernels of `triton_kernels.py`.

Types: x, the weights and out have one dtype, products accumulate in float32, the shrunk activations stay
float32. A block of one row multiplies without tensor cores, whose smallest tile has 16 rows: it would read no
less and compute 16 times as much. In tensor core blocks the shrunk activations are rounded to the weights'
dtype, as two GEMMs of torch would.
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
    inner_total,
    inner_blocks,
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
    last = tl.minimum(first + inner_blocks * BLOCK_INNER, inner_total)

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
        # Eight products that one thread holds are added at once: an eighth of the registers, and one sum
        # over threads at the end instead of one a step.
        partial = tl.zeros((RANKS, BLOCK_INNER // 8), dtype=tl.float32)
        for k in range(first, last, BLOCK_INNER):
            inner = k + columns
            # Segments of one row read their weights once: these shall not displace what others reread.
            if EVEN_INNER:
                x_tile = tl.load(x_row + inner)
                a_tile = tl.load(
                    memory + offsets[:, None] + inner[None, :],
                    mask=live[:, None],
                    other=0.0,
                    eviction_policy="evict_first",
                )
            else:
                inside = inner < inner_total
                x_tile = tl.load(x_row + inner, mask=inside, other=0.0)
                a_tile = tl.load(
                    memory + offsets[:, None] + inner[None, :],
                    mask=live[:, None] & inside[None, :],
                    other=0.0,
                    eviction_policy="evict_first",
                )
            products = a_tile.to(tl.float32) * x_tile.to(tl.float32)[None, :]
            partial += tl.sum(tl.reshape(products, (RANKS, BLOCK_INNER // 8, 8)), axis=2)
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
                inside = inner < inner_total
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
def look_up_block(
    item, token_ids, row_index, memory, a_offsets, scale, shrunk, ROWS: tl.constexpr, RANKS: tl.constexpr
):
    """shrunk[rows, ranks] = A[ranks, token of row] * scale[ranks]: a one-hot x picks a column of A."""
    row_first = tl.load(item)
    row_count = tl.load(item + 1)
    rank_first = tl.load(item + 2)
    rank_count = tl.load(item + 3)
    base = tl.load(item + 4)
    stride = tl.load(item + 5)

    ranks = tl.arange(0, RANKS)
    live = ranks < rank_count
    offsets = tl.load(a_offsets + rank_first + ranks, mask=live, other=0)
    factor = tl.load(scale + rank_first + ranks, mask=live, other=0.0)
    rows = tl.arange(0, ROWS)
    present = rows < row_count
    row = tl.load(row_index + row_first + rows, mask=present, other=0).to(tl.int64)
    token = tl.load(token_ids + row, mask=present, other=0).to(tl.int64)
    mask = present[:, None] & live[None, :]
    values = tl.load(memory + offsets[None, :] + token[:, None], mask=mask, other=0.0).to(tl.float32)
    tl.store(shrunk + base + rows[:, None] * stride + ranks[None, :], values * factor[None, :], mask=mask)


@triton.jit
def load_b(
    memory,
    b_offsets,
    b_first,
    row_length,
    rank_first,
    rank_count,
    start,
    column,
    inside,
    DEPTH: tl.constexpr,
    EVEN_OUTER: tl.constexpr,
    ALIGNED: tl.constexpr,
    STACKED: tl.constexpr,
    ONCE: tl.constexpr,
):
    """B[ranks from start, columns of the block]; zero past the last rank."""
    ranks = start + tl.arange(0, DEPTH)
    live = ranks < rank_count
    if STACKED:
        offsets = b_first + ranks * row_length
    else:
        offsets = tl.load(b_offsets + rank_first + ranks, mask=live, other=0)
    if ALIGNED:
        offsets = tl.multiple_of(offsets, [8])
    mask = live[:, None]
    if not EVEN_OUTER:
        mask = mask & inside[None, :]
    place = memory + offsets[:, None] + column[None, :]
    if ONCE:
        return tl.load(place, mask=mask, other=0.0, eviction_policy="evict_first")
    else:  # noqa: RET505 - the compiler needs both branches of a constexpr spelled out
        return tl.load(place, mask=mask, other=0.0)


@triton.jit
def load_shrunk(
    place,
    split_stride,
    splits,
    start,
    row_count,
    rank_count,
    stride,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """The parts of shrunk[rows, ranks from start], added in a fixed order: [ROWS, DEPTH].

    Past L1 (.cg): other blocks wrote these values, and L1 is not kept coherent.
    """
    ranks = start + tl.arange(0, DEPTH)
    lines = tl.arange(0, ROWS)
    mask = (lines < row_count)[:, None] & (ranks < rank_count)[None, :]
    place += lines[:, None] * stride + ranks[None, :]
    if ROWS * DEPTH * SPLITS <= 4096:
        # All parts are requested at once: one trip to the L2 cache instead of one a part.
        parts = tl.arange(0, SPLITS)
        places = place[None, :, :] + (parts * split_stride)[:, None, None]
        asked = mask[None, :, :] & (parts < splits)[:, None, None]
        sums = tl.sum(tl.load(places, mask=asked, other=0.0, cache_modifier=".cg"), axis=0)
    else:
        sums = tl.zeros((ROWS, DEPTH), dtype=tl.float32)
        for split in range(splits):
            sums += tl.load(place + split * split_stride, mask=mask, other=0.0, cache_modifier=".cg")
    return sums


@triton.jit
def expand_block(
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
    DEPTH: tl.constexpr,
    BLOCK_OUTER: tl.constexpr,
    SPLITS: tl.constexpr,
    EVEN_OUTER: tl.constexpr,
    ALIGNED: tl.constexpr,
    STACKED: tl.constexpr,
    GAIN: tl.constexpr,
    BIAS: tl.constexpr,
    AFTER_FLAG: tl.constexpr,
    AFTER_GRID: tl.constexpr,
):
    """out[rows, columns] += (sum of the parts of shrunk[rows, :]) B[:, columns], times the gain if any.

    B's first ranks and the base output are requested before the block waits for the shrink, which
    changes neither.
    """
    row_first = tl.load(item)
    row_count = tl.load(item + 1)
    rank_first = tl.load(item + 2)
    rank_count = tl.load(item + 3)
    base = tl.load(item + 4)
    stride = tl.load(item + 5)
    split_stride = tl.load(item + 6)
    column_count = tl.load(item + 8)
    column_first = tl.load(item + 9)
    column_in_slice = tl.load(item + 12)
    row_length = tl.load(item + 13)
    b_first = tl.load(b_offsets + rank_first)
    if ALIGNED:
        column_first = tl.multiple_of(column_first, 8)
        column_in_slice = tl.multiple_of(column_in_slice, 8)
    lanes = tl.arange(0, BLOCK_OUTER)
    inside = lanes < column_count
    column = column_in_slice + lanes

    b_tile = load_b(
        memory,
        b_offsets,
        b_first,
        row_length,
        rank_first,
        rank_count,
        0,
        column,
        inside,
        DEPTH,
        EVEN_OUTER,
        ALIGNED,
        STACKED,
        ROWS == 1,
    )
    rows = tl.arange(0, ROWS)
    present = rows < row_count
    row = tl.load(row_index + row_first + rows, mask=present, other=0).to(tl.int64)
    place = out + row[:, None] * out_stride + (column_first + lanes)[None, :]
    mask = present[:, None]
    if not EVEN_OUTER:
        mask = mask & inside[None, :]
    before = tl.load(place, mask=mask, other=0.0)

    if AFTER_GRID:
        gdc_wait()
    if AFTER_FLAG:
        flag = flags + tl.load(item + 7)
        target = tl.load(item + 10)
        while tl.atomic_add(flag, 0, sem="acquire", scope="gpu") < target:
            pass

    result = before.to(tl.float32)
    shift = tl.zeros((1, BLOCK_OUTER), dtype=tl.float32)
    if GAIN and BIAS:
        shift = tl.load(bias + column_first + lanes, mask=inside, other=0.0).to(tl.float32)[None, :]
        result -= shift
    # Not pipelined: B is requested ahead by hand, and copies of shrunk to shared memory would only take room.
    for start in tl.range(0, rank_count, DEPTH, num_stages=1):
        sums = load_shrunk(
            shrunk + base, split_stride, splits, start, row_count, rank_count, stride, ROWS, DEPTH, SPLITS
        )
        if ROWS == 1:
            products = b_tile.to(tl.float32) * tl.reshape(sums, (DEPTH, 1))
            result += tl.sum(products, axis=0)[None, :]
        else:
            result = tl.dot(sums.to(b_tile.dtype), b_tile, result, input_precision="ieee")
        b_tile = load_b(
            memory,
            b_offsets,
            b_first,
            row_length,
            rank_first,
            rank_count,
            start + DEPTH,
            column,
            inside,
            DEPTH,
            EVEN_OUTER,
            ALIGNED,
            STACKED,
            ROWS == 1,
        )
    if GAIN:
        adapter = tl.load(item + 11).to(tl.int64)
        factor = tl.load(gain + adapter * gain_stride + column_first + lanes, mask=inside, other=0.0)
        result = result * factor[None, :] + shift
    tl.store(place, result.to(out.dtype.element_ty), mask=mask)


@triton.jit
def release(flags, item):
    """Tells waiting blocks that this one's shrunk values are in memory."""
    tl.debug_barrier()
    # In the sector of the entry that the shrink has read, and so in L1; held in a register it made one spill.
    tl.atomic_add(flags + tl.load(item + 7), 1, sem="release", scope="gpu")


@triton.jit
def launch_dependents():
    """Lets the expand's grid start while this one still runs; sm_90 and later."""
    gdc_launch_dependents()
