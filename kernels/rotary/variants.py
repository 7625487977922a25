"""Specializations of the rotary kernels for the heads of the supported models."""

from __future__ import annotations

from collections.abc import Iterator

from kernels.rotary.gpu import block
from kernels.rotary.triton_kernels import rotate_and_store_kernel, rotate_kernel
from kernels.variant import Variant, aligned, typed

SHAPES = ((64, 9, 3, 32), (128, 32, 8, 64), (256, 8, 4, 128), (128, 32, 2, 32))
"""(head_dim, heads, kv heads, rotated pairs): SmolLM2-135M, Llama-3.1-8B, Gemma 3, half rotated as in GLM-4.
"""

TYPES = {
    "x": "*{}",
    "x_stride": "i32",
    "head_stride": "i32",
    "cos": "*{}",
    "cos_stride": "i32",
    "sin": "*{}",
    "sin_stride": "i32",
}
STORE_TYPES = {
    "qkv": "*{}",
    "qkv_stride": "i32",
    "cos": "*{}",
    "cos_stride": "i32",
    "sin": "*{}",
    "sin_stride": "i32",
    "k_pages": "*{}",
    "v_pages": "*{}",
    "page_stride": "i32",
    "slot_stride": "i32",
    "head_stride": "i32",
    "slots": "*i64",
}


def variants() -> Iterator[Variant]:
    """Yield both kernels for every shape in bf16, for one in fp32, and for odd head sizes."""
    for shape in SHAPES:
        yield from _variants(*shape, "bf16")
    yield from _variants(128, 32, 8, 64, "fp32")
    yield from _variants(42, 3, 1, 21, "bf16")


def _variants(head_dim: int, heads: int, kv_heads: int, half: int, dtype: str) -> Iterator[Variant]:
    block_heads, block_half = block(half)
    even = half % 8 == 0
    suffix = f"{heads}x{head_dim}.{2 * half}.{dtype}" + ("" if even else ".uneven")
    shape = {"HALF": half, "BLOCK_HEADS": block_heads, "BLOCK_HALF": block_half}
    constants = shape | {"HEADS": heads + kv_heads}
    yield Variant(
        f"rotary.rotate.{suffix}", rotate_kernel, typed(TYPES, dtype), constants, aligned(TYPES, even=even)
    )
    rest = head_dim - 2 * half
    yield Variant(
        f"rotary.store.{suffix}",
        rotate_and_store_kernel,
        typed(STORE_TYPES, dtype),
        shape
        | {
            "HEADS": heads,
            "KV": kv_heads,
            "HEAD_DIM": head_dim,
            "PAGE": 16,
            "BLOCK_REST": 1 << (rest - 1).bit_length() if rest else 0,
        },
        aligned(STORE_TYPES, even=even),
    )
