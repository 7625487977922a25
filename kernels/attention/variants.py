"""Specializations of the attention kernels over the head sizes of the models that are served."""

from __future__ import annotations

from collections.abc import Iterator

from kernels.attention.gpu import keys_per_step
from kernels.attention.triton_kernels import attention_kernel, combine_kernel
from kernels.variant import Variant

SHAPES = ((64, 9, 3), (128, 32, 8), (128, 64, 8), (256, 8, 4))
"""(head_dim, heads, kv heads): SmolLM2-135M, Llama-3.1-8B, Qwen3-32B, Gemma 3."""

TYPES = {
    "items": "*i32",
    "q": "*{}",
    "q_stride": "i32",
    "k_pages": "*{}",
    "v_pages": "*{}",
    "page_stride": "i32",
    "slot_stride": "i32",
    "block_table": "*i32",
    "table_stride": "i32",
    "partial": "*fp32",
    "peak": "*fp32",
    "total": "*fp32",
    "scale": "fp32",
    "window": "i32",
    "splits": "i32",
}
COMBINE_TYPES = {
    "out": "*{}",
    "out_stride": "i32",
    "partial": "*fp32",
    "peak": "*fp32",
    "total": "*fp32",
    "sinks": "*fp32",
    "splits": "i32",
}
ALIGNED = ("q_stride", "page_stride", "slot_stride", "out_stride")


def variants() -> Iterator[Variant]:
    """Decode and prefill of every shape in bf16, decode of one in fp32."""
    for head_dim, heads, kv_heads in SHAPES:
        for rows in (16, 64):
            yield _attention(head_dim, heads, kv_heads, rows, "bf16")
        constants = {"HEADS": heads, "HEAD_DIM": head_dim, "BLOCK_DIM": head_dim, "SINKS": heads == 64}
        name = f"attention.combine.{heads}x{head_dim}.bf16"
        yield Variant(name, combine_kernel, _typed(COMBINE_TYPES, "bf16"), constants, _aligned(COMBINE_TYPES))
    yield _attention(64, 9, 3, 16, "fp32")


def _attention(head_dim: int, heads: int, kv_heads: int, rows: int, dtype: str) -> Variant:
    constants = {
        "HEADS": heads,
        "GROUP": heads // kv_heads,
        "HEAD_DIM": head_dim,
        "BLOCK_DIM": head_dim,
        "PAGE": 16,
        "ROWS": rows,
        "KEYS": keys_per_step(head_dim, 4 if dtype == "fp32" else 2),
    }
    name = f"attention.{'decode' if rows == 16 else 'prefill'}.{heads}x{head_dim}.{dtype}"
    return Variant(name, attention_kernel, _typed(TYPES, dtype), constants, _aligned(TYPES))


def _aligned(types: dict[str, str]) -> tuple[str, ...]:
    return tuple(name for name, kind in types.items() if kind[0] == "*" or name in ALIGNED)


def _typed(types: dict[str, str], dtype: str) -> dict[str, str]:
    return {name: kind.format(dtype) for name, kind in types.items()}
