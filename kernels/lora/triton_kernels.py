"""The kernels: shrink, look-up, expand, and shrink and expand in one launch.

Each walks the flat worklist of `worklist.py`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.lora.blocks import expand_block, launch_dependents, look_up_block, release, shrink_block
from kernels.lora.worklist import FIELDS

ITEM: tl.constexpr = tl.constexpr(FIELDS)


@triton.jit(do_not_specialize=["inner", "inner_blocks"])
def shrink_kernel(
    items,
    x,
    x_stride,
    row_index,
    memory,
    a_offsets,
    scale,
    shrunk,
    inner,
    inner_blocks,
    ROWS: tl.constexpr,
    RANKS: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    EVEN_INNER: tl.constexpr,
    ALIGNED: tl.constexpr,
    ATOMIC: tl.constexpr,
    PDL: tl.constexpr,
):
    """One block per entry."""
    if PDL:
        launch_dependents()
    item = items + tl.program_id(0) * ITEM
    shrink_block(
        item,
        x,
        x_stride,
        row_index,
        memory,
        a_offsets,
        scale,
        shrunk,
        inner,
        inner_blocks,
        ROWS,
        RANKS,
        BLOCK_INNER,
        EVEN_INNER,
        ALIGNED,
        ATOMIC,
    )


@triton.jit
def look_up_kernel(
    items,
    token_ids,
    row_index,
    memory,
    a_offsets,
    scale,
    shrunk,
    ROWS: tl.constexpr,
    RANKS: tl.constexpr,
    PDL: tl.constexpr,
):
    """The embedding's shrink: one block per entry."""
    if PDL:
        launch_dependents()
    item = items + tl.program_id(0) * ITEM
    look_up_block(item, token_ids, row_index, memory, a_offsets, scale, shrunk, ROWS, RANKS)


@triton.jit(do_not_specialize=["first", "splits"])
def expand_kernel(
    items,
    first,
    out,
    out_stride,
    row_index,
    memory,
    b_offsets,
    shrunk,
    splits,
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
    PDL: tl.constexpr,
):
    """One block per entry from `first` on."""
    item = items + (first + tl.program_id(0)) * ITEM
    expand_block(
        item,
        out,
        out_stride,
        row_index,
        memory,
        b_offsets,
        shrunk,
        splits,
        items,
        gain,
        gain_stride,
        bias,
        ROWS,
        DEPTH,
        BLOCK_OUTER,
        SPLITS,
        EVEN_OUTER,
        ALIGNED,
        STACKED,
        GAIN,
        BIAS,
        AFTER_FLAG=False,
        AFTER_GRID=PDL,
    )


@triton.jit(do_not_specialize=["inner"])
def fused_kernel(
    items,
    plan,
    flags,
    x,
    x_stride,
    out,
    out_stride,
    row_index,
    memory,
    a_offsets,
    b_offsets,
    scale,
    shrunk,
    gain,
    gain_stride,
    bias,
    inner,
    ROWS: tl.constexpr,
    RANKS: tl.constexpr,
    DEPTH: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    BLOCK_OUTER: tl.constexpr,
    SPLITS: tl.constexpr,
    EVEN_INNER: tl.constexpr,
    EVEN_OUTER: tl.constexpr,
    ALIGNED: tl.constexpr,
    STACKED: tl.constexpr,
    GAIN: tl.constexpr,
    BIAS: tl.constexpr,
):
    """Shrink and expand in one launch, by a grid of any size.

    Blocks draw tickets, and a ticket is an entry. All shrinks stand before all expands, so whoever waits
    for a shrink waits for a block that already runs: no schedule can deadlock. Nothing about the batch is
    an argument by value: how many entries there are is read from `plan`, so that a captured graph does
    what the worklist says at replay. The last block to finish clears the counters for the next launch.

    plan: int32 [shrinks, entries, splits, inner_blocks, number of flags].
    flags: int32 [2 + capacity]: tickets drawn, blocks finished, then shrinks done by flag; zero before.
    """
    shrinks = tl.load(plan)
    entries = tl.load(plan + 1)
    splits = tl.load(plan + 2)
    inner_blocks = tl.load(plan + 3)
    done = flags + 2
    ticket = tl.atomic_add(flags, 1, sem="relaxed")
    while ticket < entries:
        item = items + ticket.to(tl.int64) * ITEM
        if ticket < shrinks:
            shrink_block(
                item,
                x,
                x_stride,
                row_index,
                memory,
                a_offsets,
                scale,
                shrunk,
                inner,
                inner_blocks,
                ROWS,
                RANKS,
                BLOCK_INNER,
                EVEN_INNER,
                ALIGNED,
                ATOMIC=False,
            )
            release(done, item)
        else:
            expand_block(
                item,
                out,
                out_stride,
                row_index,
                memory,
                b_offsets,
                shrunk,
                splits,
                done,
                gain,
                gain_stride,
                bias,
                ROWS,
                DEPTH,
                BLOCK_OUTER,
                SPLITS,
                EVEN_OUTER,
                ALIGNED,
                STACKED,
                GAIN,
                BIAS,
                AFTER_FLAG=True,
                AFTER_GRID=False,
            )
        ticket = tl.atomic_add(flags, 1, sem="relaxed")
    finished = tl.atomic_add(flags + 1, 1, sem="acq_rel", scope="gpu")
    if finished == tl.num_programs(0) - 1:
        lanes = tl.arange(0, 128)
        for start in range(0, tl.load(plan + 4) + 2, 128):
            tl.store(flags + start + lanes, 0, mask=start + lanes < tl.load(plan + 4) + 2)
