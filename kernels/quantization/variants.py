"""Specializations of the W4A16 kernel over layers of SmolLM2-135M and Llama-3.1-8B."""

from __future__ import annotations

from collections.abc import Iterator

from kernels.quantization.gpu import BLOCK_N, BLOCKS_M
from kernels.quantization.triton_kernels import w4a16_kernel
from kernels.variant import Variant

TYPES = {
    "x": "*{}", "x_stride": "i32", "codes": "*i32", "scales": "*{}", "zeros": "*u8", "bias": "*{}",
    "residual": "*{}", "out": "*{}", "rows": "i32",
}  # fmt: skip


def variants() -> Iterator[Variant]:
    """Every group size with zeros and without, of few rows and many; an odd number of columns."""
    for group in (32, 64, 128):
        for zeros in (False, True):
            for block in BLOCKS_M:
                yield _of(4096, 6144, group, block, zeros=zeros)
    yield _of(576, 960, 64, BLOCKS_M[0], zeros=True, dtype="fp16")
    yield _of(1536, 577, 128, BLOCKS_M[0], zeros=False)


def _of(inner: int, columns: int, group: int, block: int, *, zeros: bool, dtype: str = "bf16") -> Variant:
    kind = "zeros" if zeros else "symmetric"
    return Variant(
        f"quantization.w4a16.{group}.{kind}.{block}rows.{inner}x{columns}.{dtype}",
        w4a16_kernel,
        {name: type_.format(dtype) for name, type_ in TYPES.items()},
        {
            "INNER": inner, "COLUMNS": columns, "GROUP": group, "ZEROS": zeros, "BIAS": True,
            "RESIDUAL": True, "BLOCK_M": block, "BLOCK_N": BLOCK_N, "WIDE": False,
        },
        tuple(name for name, type_ in TYPES.items() if type_[0] == "*" or name == "x_stride"),
    )  # fmt: skip
