"""The kernels: one block per row and group of heads. Angles are read once per block, products are float32."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _angles(cos, sin, halves, present, HALF: tl.constexpr):
    """Of the second half of each table, where the sine has its own sign."""
    c = tl.load(cos + HALF + halves, mask=present, other=0.0).to(tl.float32)
    s = tl.load(sin + HALF + halves, mask=present, other=0.0).to(tl.float32)
    return c[None, :], s[None, :]


@triton.jit
def rotate_kernel(
    x,
    x_stride,
    head_stride,
    cos,
    cos_stride,
    sin,
    sin_stride,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    """In place; grid (rows, blocks of heads)."""
    row = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    halves = tl.arange(0, BLOCK_HALF)
    present = halves < HALF
    inside = (heads < HEADS)[:, None] & present[None, :]
    c, s = _angles(cos + row * cos_stride, sin + row * sin_stride, halves, present, HALF)
    first_place = x + row * x_stride + heads[:, None] * head_stride + halves[None, :]
    second_place = first_place + HALF
    first = tl.load(first_place, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(second_place, mask=inside, other=0.0).to(tl.float32)
    dtype = x.dtype.element_ty
    tl.store(first_place, (first * c - second * s).to(dtype), mask=inside)
    tl.store(second_place, (second * c + first * s).to(dtype), mask=inside)


@triton.jit
def _put(target, heads, k_pages, v_pages, kv_place, values, inside, HEADS: tl.constexpr, KV: tl.constexpr):
    """Stores queries' lines at `target`, keys' and values' in their pages."""
    dtype = target.dtype.element_ty
    line = heads[:, None]
    tl.store(target, values.to(dtype), mask=inside & (line < HEADS))
    tl.store(k_pages + kv_place, values.to(dtype), mask=inside & (line >= HEADS) & (line < HEADS + KV))
    tl.store(v_pages + kv_place, values.to(dtype), mask=inside & (line >= HEADS + KV))


@triton.jit
def rotate_and_store_kernel(
    qkv,
    qkv_stride,
    cos,
    cos_stride,
    sin,
    sin_stride,
    k_pages,
    v_pages,
    page_stride,
    slot_stride,
    head_stride,
    slots,
    HEADS: tl.constexpr,
    KV: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
):
    """Queries in place, keys and values to their pages; grid (rows, blocks of heads).

    Dimensions beyond the turned ones are copied for keys and values; there are at most BLOCK_REST, 0 if none.
    """
    row = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    halves = tl.arange(0, BLOCK_HALF)
    present = halves < HALF
    inside = (heads < HEADS + 2 * KV)[:, None] & present[None, :]
    c, s = _angles(cos + row * cos_stride, sin + row * sin_stride, halves, present, HALF)
    slot = tl.load(slots + row)
    kept = (heads < HEADS) | (slot >= 0)
    kv_head = (heads - HEADS) % KV
    kv_line = (slot // PAGE) * page_stride + (slot % PAGE) * slot_stride + kv_head * head_stride
    line = qkv + row * qkv_stride + heads[:, None] * HEAD_DIM
    first = tl.load(line + halves[None, :], mask=inside, other=0.0).to(tl.float32)
    second = tl.load(line + HALF + halves[None, :], mask=inside, other=0.0).to(tl.float32)
    inside = inside & kept[:, None]
    place = kv_line[:, None] + halves[None, :]
    # Values are chosen, not turned by an angle of 0: that would make NaN of an infinite one's partner.
    is_value = (heads >= HEADS + KV)[:, None]
    turned_first = tl.where(is_value, first, first * c - second * s)
    turned_second = tl.where(is_value, second, second * c + first * s)
    _put(line + halves[None, :], heads, k_pages, v_pages, place, turned_first, inside, HEADS, KV)
    place += HALF
    _put(line + HALF + halves[None, :], heads, k_pages, v_pages, place, turned_second, inside, HEADS, KV)
    if BLOCK_REST > 0:
        rest = 2 * HALF + tl.arange(0, BLOCK_REST)
        inside = (kept & (heads >= HEADS) & (heads < HEADS + 2 * KV))[:, None] & (rest < HEAD_DIM)[None, :]
        values = tl.load(line + rest[None, :], mask=inside, other=0.0)
        place = kv_line[:, None] + rest[None, :]
        _put(line + rest[None, :], heads, k_pages, v_pages, place, values, inside, HEADS, KV)
