"""Specializations of the attention kernels over the head sizes of the models that are served."""

from __future__ import annotations

from collections.abc import Iterator

from kernels.attention.gpu import COMBINE_WARPS
from kernels.attention.tile import block_dim, tile_for
from kernels.attention.triton_kernels import attention_kernel, combine_kernel
from kernels.variant import Variant, typed

SHAPES = ((64, 9, 3), (128, 32, 8), (128, 64, 8), (256, 8, 4), (80, 32, 32))
"""(head_dim, heads, kv heads): SmolLM2-135M, Llama-3.1-8B, Qwen3-32B, Gemma 3, Phi-2."""

TYPES = {
    "items": "*i32",
    "counts": "*i32",
    "q": "*{}",
    "q_stride": "i32",
    "q_head_stride": "i32",
    "kv_pages": "*{}",
    "v_offset": "i64",
    "head_stride": "i32",
    "page_stride": "i32",
    "block_table": "*i32",
    "table_stride": "i32",
    "out": "*{}",
    "partial": "*fp32",
    "peaks": "*fp32",
    "totals": "*fp32",
    "sinks": "*{}",
    "scale": "fp32",
    "window": "i32",
}
COMBINE_TYPES = {
    "out": "*{}",
    "row_parts": "*i32",
    "partial": "*fp32",
    "peaks": "*fp32",
    "totals": "*fp32",
    "sinks": "*{}",
}
ALIGNED = ("q_stride", "q_head_stride", "v_offset", "head_stride", "page_stride")


def variants() -> Iterator[Variant]:
    """Decode and prefill of every shape in bf16; windows and sinks, fp32 and captured launches of some."""
    for head_dim, heads, kv_heads in SHAPES:
        yield _attention(head_dim, heads, kv_heads, "bf16", 1, SPLIT=True)
        yield _attention(head_dim, heads, kv_heads, "bf16", 512)
        yield _combine(head_dim, heads, "bf16", sinks=heads == 64)
    for rows in (1, 512):
        yield _attention(64, 64, 8, "bf16", rows, SPLIT=rows == 1, WINDOWED=True, SINKS=True)
        yield _attention(64, 9, 3, "fp32", rows, SPLIT=rows == 1)
    yield _attention(128, 32, 8, "bf16", 1, SPLIT=True, GRAPH=True)
    yield _attention(128, 32, 8, "bf16", 512, SPLIT=True)
    yield _attention(64, 71, 1, "bf16", 1, SPLIT=True)


def _attention(head_dim: int, heads: int, kv_heads: int, dtype: str, queries: int, **flags: bool) -> Variant:
    group = heads // kv_heads
    tile = tile_for(queries * group, head_dim, 4 if dtype == "fp32" else 2)
    constants = {
        "KV_HEADS": kv_heads,
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "BLOCK_DIM": block_dim(head_dim),
        "PAGE": 16,
        "ROWS": max(tile.rows, 1 << (group - 1).bit_length()),
        "KEYS": tile.keys,
        **dict.fromkeys(("WINDOWED", "SPLIT", "SINKS", "GRAPH"), False),
        **flags,
    }
    kind = "decode" if queries == 1 else "prefill"
    suffix = "".join(f".{flag.lower()}" for flag in flags if flags[flag])
    name = f"attention.{kind}.{heads}x{head_dim}.{dtype}{suffix}"
    types = typed(TYPES, dtype)
    return Variant(name, attention_kernel, types, constants, _aligned(TYPES), tile.warps, tile.stages)


def _combine(head_dim: int, heads: int, dtype: str, *, sinks: bool) -> Variant:
    constants = {"HEADS": heads, "HEAD_DIM": head_dim, "BLOCK_DIM": block_dim(head_dim), "SINKS": sinks}
    name = f"attention.combine.{heads}x{head_dim}.{dtype}"
    types = typed(COMBINE_TYPES, dtype)
    return Variant(name, combine_kernel, types, constants, _aligned(COMBINE_TYPES), COMBINE_WARPS)


def _aligned(types: dict[str, str]) -> tuple[str, ...]:
    return tuple(name for name, kind in types.items() if kind[0] == "*" or name in ALIGNED)
