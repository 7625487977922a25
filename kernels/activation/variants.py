"""Specializations of the activation kernel for the feed-forward sizes of the supported models."""

from __future__ import annotations

from collections.abc import Iterator

from kernels.activation.gpu import BLOCK
from kernels.activation.triton_kernels import gated_kernel
from kernels.variant import Variant, aligned, typed

TYPES = {
    "gate_up": "*{}",
    "gate_up_stride": "i32",
    "out": "*{}",
    "out_stride": "i32",
    "alpha": "fp32",
    "limit": "fp32",
}


def variants() -> Iterator[Variant]:
    """Yield each kind in bf16 in both layouts, SwiGLU of SmolLM2-135M and Llama-3.1-8B, fp32, and an odd
    size.
    """
    for kind in ("silu", "gelu_tanh", "clamped_swiglu"):
        for interleaved in (False, True):
            yield _variant(14336, kind, "bf16", interleaved=interleaved)
    yield _variant(1536, "silu", "bf16")
    yield _variant(14336, "silu", "fp32")
    yield _variant(2049, "silu", "bf16")


def _variant(inter: int, kind: str, dtype: str, *, interleaved: bool = False) -> Variant:
    even = inter % 16 == 0
    layout = ".interleaved" if interleaved else ""
    return Variant(
        f"activation.{kind}.{inter}{layout}.{dtype}" + ("" if even else ".uneven"),
        gated_kernel,
        typed(TYPES, dtype),
        {"INTER": inter, "BLOCK": BLOCK, "KIND": kind, "INTERLEAVED": interleaved},
        aligned(TYPES, even=even),
    )
