"""Every specialization of the multi-LoRA kernels that a serving process launches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kernels.lora.tile import tile_for
from kernels.lora.triton_kernels import expand_kernel, fused_kernel, look_up_kernel, shrink_kernel
from kernels.variant import Variant, aligned, typed

ROWS = {"single": 1, "few": 8, "many": 1000}
"""Rows of a segment for each kind of block."""

SHRINK_TYPES = {
    "items": "*i32",
    "x": "*{}",
    "x_stride": "i32",
    "row_index": "*i32",
    "memory": "*{}",
    "a_offsets": "*i64",
    "scale": "*fp32",
    "shrunk": "*fp32",
    "inner": "i32",
    "inner_blocks": "i32",
}
LOOK_UP_TYPES = {
    "items": "*i32",
    "token_ids": "*i64",
    "row_index": "*i32",
    "memory": "*{}",
    "a_offsets": "*i64",
    "scale": "*fp32",
    "shrunk": "*fp32",
}
EXPAND_TYPES = {
    "items": "*i32",
    "first": "i32",
    "out": "*{}",
    "out_stride": "i32",
    "row_index": "*i32",
    "memory": "*{}",
    "b_offsets": "*i64",
    "shrunk": "*fp32",
    "splits": "i32",
    "gain": "*fp32",
    "gain_stride": "i32",
    "bias": "*{}",
}
FUSED_TYPES = {**SHRINK_TYPES, **EXPAND_TYPES, "plan": "*i32", "flags": "*i32"}


def variants() -> Iterator[Variant]:
    """Yield 2-byte weights on whole blocks as in serving, fp32 on odd shapes, DoRA, both split-K modes.

    Long segments never use the fused kernel, which would need the registers of both halves.
    """
    for dtype in ("bf16", "fp16", "fp32"):
        for name in ROWS:
            yield from _variants(
                name, dtype, even=dtype != "fp32", atomic=dtype == "fp16", gain=dtype == "fp32"
            )
    yield from _variants("single", "bf16", even=False, atomic=True, gain=True)
    yield from _by_offset()


def _by_offset() -> Iterator[Variant]:
    """Yield decode kernels that read each adapter's weights by the offsets in its table row.

    Weights are not contiguous in pages of a pool, in mixes of adapters, and in launches of a CUDA graph.
    """
    for one in _variants("single", "bf16", even=True, atomic=False, gain=False):
        if "STACKED" in one.constants:
            yield replace(one, name=f"{one.name}.scattered", constants={**one.constants, "STACKED": False})


def _variants(tile_name: str, dtype: str, *, even: bool, atomic: bool, gain: bool) -> Iterator[Variant]:
    tile = tile_for(ROWS[tile_name], 4 if dtype == "fp32" else 2)
    suffix = f"{tile_name}.{dtype}" + ("" if even else ".uneven")
    common = {"ROWS": tile.rows, "ALIGNED": even}
    shrink = {"RANKS": tile.ranks, "BLOCK_INNER": tile.inner, "EVEN_INNER": even}
    expand = {"DEPTH": tile.depth, "BLOCK_OUTER": tile.outer, "SPLITS": tile.splits, "EVEN_OUTER": even}
    expand |= {"STACKED": even, "GAIN": gain, "BIAS": gain}
    sizes = (tile.warps, tile.stages)
    yield Variant(
        f"lora.shrink.{suffix}",
        shrink_kernel,
        typed(SHRINK_TYPES, dtype),
        common | shrink | {"ATOMIC": atomic},
        aligned(SHRINK_TYPES, even=even),
        *sizes,
        pdl_from=90,
    )
    if dtype == "fp16":
        return  # only the shrink has split-K by atomics; the other kernels equal those of bf16
    if even:
        yield Variant(
            f"lora.look_up.{suffix}",
            look_up_kernel,
            typed(LOOK_UP_TYPES, dtype),
            {"ROWS": tile.rows, "RANKS": tile.ranks},
            aligned(LOOK_UP_TYPES, even=even),
            *sizes,
            pdl_from=90,
        )
    yield Variant(
        f"lora.expand.{suffix}",
        expand_kernel,
        typed(EXPAND_TYPES, dtype),
        common | expand,
        aligned(EXPAND_TYPES, even=even),
        *sizes,
        pdl_from=90,
    )
    if tile_name == "many":
        return
    types = {name: FUSED_TYPES[name] for name in fused_kernel.arg_names if name in FUSED_TYPES}
    yield Variant(
        f"lora.fused.{suffix}",
        fused_kernel,
        typed(types, dtype),
        common | shrink | expand,
        aligned(types, even=even),
        *sizes,
    )
