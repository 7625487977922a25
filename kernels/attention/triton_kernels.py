"""Attention by online softmax over pages of keys, and the sum of its parts.

A block holds the queries of all heads that share a kv head, so that keys are read once per group.
Scores, weights' sums and outputs are float32; weights are rounded to the values' dtype for the product.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.attention.worklist import FIELDS

ITEM: tl.constexpr = tl.constexpr(FIELDS)
LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def _visit(
    q_tile,
    best,
    weight,
    result,
    start,
    last,
    position,
    window,
    scale,
    table,
    k_first,
    v_first,
    page_stride,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    PAGE: tl.constexpr,
    KEYS: tl.constexpr,
    MASKED: tl.constexpr,
    WINDOWED: tl.constexpr,
):
    """One step of the online softmax, over the keys `start` to start + KEYS - 1.

    Without MASKED every key is there and seen by every row. No mask at all lets the loads be the widest and
    spares the comparisons.
    """
    keys = start + tl.arange(0, KEYS)
    dims = tl.arange(0, BLOCK_DIM)
    exists = keys < last
    if MASKED:
        page = tl.load(table + keys // PAGE, mask=exists, other=0).to(tl.int64)
    else:
        page = tl.load(table + keys // PAGE).to(tl.int64)
    offset = (page * page_stride + (keys % PAGE) * HEAD_DIM)[:, None] + dims[None, :]
    if MASKED:
        mask = exists[:, None] & (dims < HEAD_DIM)[None, :]
        k_tile = tl.load(k_first + offset, mask=mask, other=0.0)
        v_tile = tl.load(v_first + offset, mask=mask, other=0.0)
    elif HEAD_DIM == BLOCK_DIM:
        k_tile = tl.load(k_first + offset)
        v_tile = tl.load(v_first + offset)
    else:
        k_tile = tl.load(k_first + offset, mask=(dims < HEAD_DIM)[None, :], other=0.0)
        v_tile = tl.load(v_first + offset, mask=(dims < HEAD_DIM)[None, :], other=0.0)
    scores = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee") * (scale * LOG2E)
    if MASKED:
        seen = exists[None, :] & (keys[None, :] <= position[:, None])
        if WINDOWED:
            seen = seen & (keys[None, :] > position[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))
    peak = tl.maximum(best, tl.max(scores, axis=1))
    level = peak
    if MASKED:
        # A row that has seen no key yet keeps -inf; minus itself that would be NaN.
        level = tl.where(peak == float("-inf"), 0.0, peak)
    shares = tl.exp2(scores - level[:, None])
    shrink = tl.exp2(best - level)
    weight = weight * shrink + tl.sum(shares, axis=1)
    result = tl.dot(shares.to(v_tile.dtype), v_tile, result * shrink[:, None], input_precision="ieee")
    return peak, weight, result


@triton.jit
def _item(
    item,
    kv_head,
    q,
    q_stride,
    q_head_stride,
    kv_pages,
    v_offset,
    head_stride,
    page_stride,
    block_table,
    table_stride,
    out,
    partial,
    peaks,
    totals,
    sinks,
    scale,
    window,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    WINDOWED: tl.constexpr,
    SPLIT: tl.constexpr,
    SINKS: tl.constexpr,
):
    """One item of the worklist for one kv head."""
    sequence = tl.load(item).to(tl.int64)
    row_first = tl.load(item + 1)
    count = tl.load(item + 2)
    position_first = tl.load(item + 3)
    first = tl.load(item + 4)
    last = tl.load(item + 5)

    lines = tl.arange(0, ROWS)
    token = lines // GROUP
    present = token < count
    head = kv_head * GROUP + lines % GROUP
    position = position_first + token
    dims = tl.arange(0, BLOCK_DIM)
    row = (row_first + token).to(tl.int64)
    held = present[:, None] & (dims < HEAD_DIM)[None, :]
    q_place = (row * q_stride + head * q_head_stride)[:, None] + dims[None, :]
    q_tile = tl.load(q + q_place, mask=held, other=0.0)
    table = block_table + sequence * table_stride
    k_first = kv_pages + kv_head.to(tl.int64) * head_stride
    v_first = k_first + v_offset

    best = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
    weight = tl.zeros((ROWS,), dtype=tl.float32)
    result = tl.zeros((ROWS, BLOCK_DIM), dtype=tl.float32)
    masked_from = first
    if not WINDOWED:
        # Keys up to the first query are seen by every row; tiles behind the last query are not in the item.
        plain = tl.maximum(tl.minimum(last, position_first + 1) - first, 0)
        masked_from = first + plain // KEYS * KEYS
        for start in range(first, masked_from, KEYS):
            best, weight, result = _visit(
                q_tile,
                best,
                weight,
                result,
                start,
                last,
                position,
                window,
                scale,
                table,
                k_first,
                v_first,
                page_stride,
                HEAD_DIM,
                BLOCK_DIM,
                PAGE,
                KEYS,
                False,
                False,
            )
    for start in range(masked_from, last, KEYS):
        best, weight, result = _visit(
            q_tile,
            best,
            weight,
            result,
            start,
            last,
            position,
            window,
            scale,
            table,
            k_first,
            v_first,
            page_stride,
            HEAD_DIM,
            BLOCK_DIM,
            PAGE,
            KEYS,
            True,
            WINDOWED,
        )

    if SPLIT:
        place_first = tl.load(item + 6).to(tl.int64)
        parts = tl.load(item + 7)
        place = (place_first + token * parts) * HEADS + head
        tl.store(peaks + place, best, mask=present)
        tl.store(totals + place, weight, mask=present)
        tl.store(partial + place[:, None] * HEAD_DIM + dims[None, :], result, mask=held)
    else:
        if SINKS:
            sink = tl.load(sinks + head, mask=present, other=0.0).to(tl.float32) * LOG2E
            level = tl.maximum(best, sink)
            shrink = tl.exp2(best - level)
            weight = weight * shrink + tl.exp2(sink - level)
            result = result * shrink[:, None]
        # Lines that hold no query have weight 0, and are not stored.
        mixed = result / tl.where(present, weight, 1.0)[:, None]
        place = (row * HEADS + head) * HEAD_DIM
        tl.store(out + place[:, None] + dims[None, :], mixed.to(out.dtype.element_ty), mask=held)


@triton.jit(do_not_specialize=["table_stride", "window"])
def attention_kernel(
    items,
    counts,
    q,
    q_stride,
    q_head_stride,
    kv_pages,
    v_offset,
    head_stride,
    page_stride,
    block_table,
    table_stride,
    out,
    partial,
    peaks,
    totals,
    sinks,
    scale,
    window,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    WINDOWED: tl.constexpr,
    SPLIT: tl.constexpr,
    SINKS: tl.constexpr,
    GRAPH: tl.constexpr,
):
    """out [query, head], or with SPLIT the parts: partial, peaks, totals [place, head].

    partial is the sum of values weighted by 2^(score - peak), total the sum of those weights. The grid is
    one block per item and kv head; with GRAPH any, and the number of items is read from memory.
    """
    if GRAPH:
        index = tl.program_id(0)
        total = tl.load(counts) * KV_HEADS
        while index < total:
            _item(
                items + index // KV_HEADS * ITEM,
                index % KV_HEADS,
                q,
                q_stride,
                q_head_stride,
                kv_pages,
                v_offset,
                head_stride,
                page_stride,
                block_table,
                table_stride,
                out,
                partial,
                peaks,
                totals,
                sinks,
                scale,
                window,
                KV_HEADS * GROUP,
                GROUP,
                HEAD_DIM,
                BLOCK_DIM,
                PAGE,
                ROWS,
                KEYS,
                WINDOWED,
                SPLIT,
                SINKS,
            )
            index += tl.num_programs(0)
    else:
        _item(
            items + tl.program_id(0) // KV_HEADS * ITEM,
            tl.program_id(0) % KV_HEADS,
            q,
            q_stride,
            q_head_stride,
            kv_pages,
            v_offset,
            head_stride,
            page_stride,
            block_table,
            table_stride,
            out,
            partial,
            peaks,
            totals,
            sinks,
            scale,
            window,
            KV_HEADS * GROUP,
            GROUP,
            HEAD_DIM,
            BLOCK_DIM,
            PAGE,
            ROWS,
            KEYS,
            WINDOWED,
            SPLIT,
            SINKS,
        )


@triton.jit
def combine_kernel(
    out,
    row_parts,
    partial,
    peaks,
    totals,
    sinks,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    SINKS: tl.constexpr,
):
    """out[query, head] from its parts, in their order; grid (queries, heads). Rows without parts are left."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    parts = tl.load(row_parts + row * 2 + 1)
    if parts > 0:
        place = tl.load(row_parts + row * 2).to(tl.int64) * HEADS + head
        dims = tl.arange(0, BLOCK_DIM)
        inside = dims < HEAD_DIM
        highest = tl.load(peaks + place)
        for part in range(1, parts):
            highest = tl.maximum(highest, tl.load(peaks + place + part * HEADS))
        weight = 0.0
        if SINKS:
            sink = tl.load(sinks + head).to(tl.float32) * LOG2E
            highest = tl.maximum(highest, sink)
            weight = tl.exp2(sink - highest)
        result = tl.zeros((BLOCK_DIM,), dtype=tl.float32)
        for part in range(parts):
            at = place + part * HEADS
            share = tl.exp2(tl.load(peaks + at) - highest)
            weight += tl.load(totals + at) * share
            result += tl.load(partial + at * HEAD_DIM + dims, mask=inside, other=0.0) * share
        target = out + (row * HEADS + head) * HEAD_DIM + dims
        tl.store(target, (result / weight).to(out.dtype.element_ty), mask=inside)
