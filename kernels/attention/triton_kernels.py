"""Attention by online softmax over pages of keys, and the sum of its parts.

A block holds the queries of all heads that share a kv head, so that keys are read once per group.
Scores, weights' sums and outputs are float32; weights are rounded to the values' dtype for the product.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.attention.plan import FIELDS

ITEM: tl.constexpr = tl.constexpr(FIELDS)
LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["window", "table_stride", "splits"])
def attention_kernel(
    items,
    q,
    q_stride,
    k_pages,
    v_pages,
    page_stride,
    slot_stride,
    block_table,
    table_stride,
    partial,
    peak,
    total,
    scale,
    window,
    splits,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
):
    """partial, peak, total [query, head, split] of one block's part of the keys; grid (items, kv heads).

    partial is the sum of values weighted by 2^(score - peak), total the sum of those weights.
    """
    item = items + tl.program_id(0) * ITEM
    kv_head = tl.program_id(1)
    sequence = tl.load(item).to(tl.int64)
    row_first = tl.load(item + 1)
    count = tl.load(item + 2)
    position_first = tl.load(item + 3)
    first = tl.load(item + 4)
    last = tl.load(item + 5)
    split = tl.load(item + 6)

    lines = tl.arange(0, ROWS)
    token = lines // GROUP
    present = token < count
    head = kv_head * GROUP + lines % GROUP
    position = position_first + token
    dims = tl.arange(0, BLOCK_DIM)
    inside = dims < HEAD_DIM
    row = (row_first + token).to(tl.int64)
    q_place = q + row[:, None] * q_stride + (head * HEAD_DIM)[:, None] + dims[None, :]
    q_tile = tl.load(q_place, mask=present[:, None] & inside[None, :], other=0.0)

    best = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
    weight = tl.zeros((ROWS,), dtype=tl.float32)
    result = tl.zeros((ROWS, BLOCK_DIM), dtype=tl.float32)
    for start in range(first, last, KEYS):
        keys = start + tl.arange(0, KEYS)
        exists = keys < last
        page = tl.load(block_table + sequence * table_stride + keys // PAGE, mask=exists, other=0).to(
            tl.int64
        )
        offset = page * page_stride + (keys % PAGE) * slot_stride + kv_head * HEAD_DIM
        mask = exists[:, None] & inside[None, :]
        k_tile = tl.load(k_pages + offset[:, None] + dims[None, :], mask=mask, other=0.0)
        scores = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee") * (scale * LOG2E)
        seen = exists[None, :] & (keys[None, :] <= position[:, None])
        seen = seen & ((window == 0) | (keys[None, :] > position[:, None] - window))
        scores = tl.where(seen, scores, float("-inf"))
        peak_now = tl.maximum(best, tl.max(scores, axis=1))
        # A row that has seen no key yet keeps -inf; minus itself that would be NaN.
        level = tl.where(peak_now == float("-inf"), 0.0, peak_now)
        shares = tl.exp2(scores - level[:, None])
        shrink = tl.exp2(best - level)
        weight = weight * shrink + tl.sum(shares, axis=1)
        v_tile = tl.load(v_pages + offset[:, None] + dims[None, :], mask=mask, other=0.0)
        result = result * shrink[:, None]
        result = tl.dot(shares.to(v_tile.dtype), v_tile, result, input_precision="ieee")
        best = peak_now

    place = (row * HEADS + head) * splits + split
    tl.store(peak + place, best, mask=present)
    tl.store(total + place, weight, mask=present)
    tl.store(
        partial + place[:, None] * HEAD_DIM + dims[None, :], result, mask=present[:, None] & inside[None, :]
    )


@triton.jit(do_not_specialize=["splits"])
def combine_kernel(
    out,
    out_stride,
    partial,
    peak,
    total,
    sinks,
    splits,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    SINKS: tl.constexpr,
):
    """out[query, head] from its parts; grid (queries, heads). A part without keys has peak -inf, weight 0."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dims = tl.arange(0, BLOCK_DIM)
    inside = dims < HEAD_DIM
    place = (row * HEADS + head) * splits
    highest = tl.load(peak + place)
    for split in range(1, splits):
        highest = tl.maximum(highest, tl.load(peak + place + split))
    weight = 0.0
    if SINKS:
        sink = tl.load(sinks + head).to(tl.float32) * LOG2E
        highest = tl.maximum(highest, sink)
        weight = tl.exp2(sink - highest)
    result = tl.zeros((BLOCK_DIM,), dtype=tl.float32)
    for split in range(splits):
        share = tl.exp2(tl.load(peak + place + split) - highest)
        weight += tl.load(total + place + split) * share
        result += tl.load(partial + (place + split) * HEAD_DIM + dims, mask=inside, other=0.0) * share
    target = out + row * out_stride + head * HEAD_DIM + dims
    tl.store(target, (result / weight).to(out.dtype.element_ty), mask=inside)
