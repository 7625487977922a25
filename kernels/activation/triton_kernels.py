"""The kernel: one block per row and part of its columns, each element of gate and up read once."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gated_kernel(
    gate_up,
    gate_up_stride,
    out,
    out_stride,
    alpha,
    limit,
    INTER: tl.constexpr,
    BLOCK: tl.constexpr,
    KIND: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    """Grid (rows, blocks of columns)."""
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * BLOCK
    columns = first + tl.arange(0, BLOCK)
    inside = columns < INTER
    source = gate_up + row * gate_up_stride
    if INTERLEAVED:
        both = 2 * first + tl.arange(0, 2 * BLOCK)
        pairs = tl.load(source + both, mask=both < 2 * INTER, other=0.0)
        gate, up = tl.split(tl.reshape(pairs, (BLOCK, 2)))
    else:
        gate = tl.load(source + columns, mask=inside, other=0.0)
        up = tl.load(source + INTER + columns, mask=inside, other=0.0)
    gate = gate.to(tl.float32)
    up = up.to(tl.float32)
    if KIND == "silu":
        result = gate * tl.sigmoid(gate) * up
    elif KIND == "gelu_tanh":
        # 0.5 (1 + tanh z) is sigmoid(2 z), which needs no tanh; z has the factor sqrt(2 / pi).
        result = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)) * up
    else:
        # As torch clamps: a NaN stays one instead of becoming the limit.
        gate = tl.minimum(gate, limit, propagate_nan=tl.PropagateNan.ALL)
        up = tl.minimum(up, limit, propagate_nan=tl.PropagateNan.ALL)
        up = tl.maximum(up, -limit, propagate_nan=tl.PropagateNan.ALL)
        result = (up + 1) * gate * tl.sigmoid(alpha * gate)
    tl.store(out + row * out_stride + columns, result.to(out.dtype.element_ty), mask=inside)
