"""Specializations of the norm kernels over the hidden and head sizes of the models that are served."""

from __future__ import annotations

from collections.abc import Iterator

from kernels.norm.gpu import block_size, head_block
from kernels.norm.triton_kernels import head_rms_norm_kernel, rms_norm_kernel
from kernels.variant import Variant, aligned, typed

HIDDEN = (576, 4096, 16384)
"""SmolLM2-135M; Llama-3.1-8B; Llama-3.1-405B, whose rows are read twice."""
HEADS = ((40, 128), (12, 256))
"""(query and key heads, head_dim): Qwen3-8B, Gemma 3."""

TYPES = {
    "x": "*{}",
    "x_stride": "i32",
    "residual": "*{}",
    "residual_stride": "i32",
    "weight": "*{}",
    "out": "*{}",
    "out_stride": "i32",
    "eps": "fp32",
    "offset": "fp32",
}
HEAD_TYPES = {
    "x": "*{}",
    "x_stride": "i32",
    "head_stride": "i32",
    "weight": "*{}",
    "eps": "fp32",
    "offset": "fp32",
}


def variants() -> Iterator[Variant]:
    """Rows with and without residual in bf16, one in fp32, one of uneven length, and heads."""
    for hidden in HIDDEN:
        for residual in (False, True):
            yield _rows(hidden, "bf16", residual=residual)
    yield _rows(4096, "fp32", residual=False)
    yield _rows(2049, "bf16", residual=True)
    for heads, head_dim in HEADS:
        block_heads, block_dim = head_block(head_dim)
        constants = {"HEADS": heads, "HEAD_DIM": head_dim, "BLOCK_HEADS": block_heads, "BLOCK_DIM": block_dim}
        yield Variant(
            f"norm.heads.{heads}x{head_dim}.bf16",
            head_rms_norm_kernel,
            typed(HEAD_TYPES, "bf16"),
            constants,
            aligned(HEAD_TYPES, even=True),
        )


def _rows(hidden: int, dtype: str, *, residual: bool) -> Variant:
    block, warps = block_size(hidden)
    even = hidden % 16 == 0
    kind = "add_rms_norm" if residual else "rms_norm"
    constants = {"HIDDEN": hidden, "BLOCK": block, "RESIDUAL": residual}
    return Variant(
        f"norm.{kind}.{hidden}.{dtype}" + ("" if even else ".uneven"),
        rms_norm_kernel,
        typed(TYPES, dtype),
        constants,
        aligned(TYPES, even=even),
        warps,
    )
