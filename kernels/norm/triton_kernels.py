"""The kernels: one block per row, and one per row and group of heads."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _read(x, residual, lanes, inside, RESIDUAL: tl.constexpr):
    """float32 values of a row; with a residual their sum, which is rounded and stored as the new residual."""
    values = tl.load(x + lanes, mask=inside, other=0.0)
    if RESIDUAL:
        total = values.to(tl.float32) + tl.load(residual + lanes, mask=inside, other=0.0).to(tl.float32)
        values = total.to(values.dtype)
        tl.store(residual + lanes, values, mask=inside)
    return values.to(tl.float32)


@triton.jit
def _write(out, values, scale, weight, lanes, inside, offset):
    gain = tl.load(weight + lanes, mask=inside, other=0.0).to(tl.float32) + offset
    tl.store(out + lanes, (values * scale * gain).to(out.dtype.element_ty), mask=inside)


@triton.jit
def rms_norm_kernel(
    x,
    x_stride,
    residual,
    residual_stride,
    weight,
    out,
    out_stride,
    eps,
    offset,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    RESIDUAL: tl.constexpr,
):
    """A row that fits into BLOCK stays in registers; a longer one is read twice, then from cache."""
    row = tl.program_id(0).to(tl.int64)
    x += row * x_stride
    residual += row * residual_stride
    out += row * out_stride
    lanes = tl.arange(0, BLOCK)
    if HIDDEN <= BLOCK:
        inside = lanes < HIDDEN
        values = _read(x, residual, lanes, inside, RESIDUAL)
        scale = tl.rsqrt(tl.sum(values * values, axis=0) / HIDDEN + eps)
        _write(out, values, scale, weight, lanes, inside, offset)
    else:
        squares = tl.zeros((BLOCK,), dtype=tl.float32)
        for start in range(0, HIDDEN, BLOCK):
            places = start + lanes
            values = _read(x, residual, places, places < HIDDEN, RESIDUAL)
            squares += values * values
        scale = tl.rsqrt(tl.sum(squares, axis=0) / HIDDEN + eps)
        # A thread may read in the second loop what another one stored in the first.
        if RESIDUAL:
            tl.debug_barrier()
        for start in range(0, HIDDEN, BLOCK):
            places = start + lanes
            inside = places < HIDDEN
            source = residual if RESIDUAL else x
            values = tl.load(source + places, mask=inside, other=0.0).to(tl.float32)
            _write(out, values, scale, weight, places, inside, offset)


@triton.jit
def head_rms_norm_kernel(
    x,
    x_stride,
    head_stride,
    weight,
    eps,
    offset,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    """In place; grid (rows, blocks of heads). weight [HEADS, HEAD_DIM]."""
    row = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    dims = tl.arange(0, BLOCK_DIM)
    inside = (heads < HEADS)[:, None] & (dims < HEAD_DIM)[None, :]
    places = x + row * x_stride + heads[:, None] * head_stride + dims[None, :]
    values = tl.load(places, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, axis=1) / HEAD_DIM + eps)
    gain = tl.load(weight + heads[:, None] * HEAD_DIM + dims[None, :], mask=inside, other=0.0)
    result = values * scale[:, None] * (gain.to(tl.float32) + offset)
    tl.store(places, result.to(x.dtype.element_ty), mask=inside)
