"""Specializations of the kernels for quantized weights, for layers of SmolLM2-135M and Llama-3.1-8B."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kernels.quantization import fp8
from kernels.quantization.fp8_kernels import fp8_kernel, quantize_rows_kernel
from kernels.quantization.gpu import BLOCK_N, BLOCK_WORDS, BLOCKS_M, COMBINED
from kernels.quantization.triton_kernels import combine_kernel, w4a16_kernel, w4a16_row_kernel
from kernels.variant import Variant

TYPES = {
    "x": "*{}",
    "x_stride": "i32",
    "codes": "*i32",
    "scales": "*{}",
    "zeros": "*u8",
    "bias": "*{}",
    "residual": "*{}",
    "out": "*{}",
    "rows": "i32",
}
COMBINE_TYPES = {"sums": "*fp32", "bias": "*{}", "residual": "*{}", "out": "*{}", "rows": "i32"}
ROUND_TYPES = {"x": "*{}", "x_stride": "i32", "codes": "*u8", "scales": "*fp32"}
FP8_TYPES = {
    "x": "*fp8e4nv",
    "x_scales": "*fp32",
    "codes": "*fp8e4nv",
    "scales": "*fp32",
    "bias": "*{}",
    "residual": "*{}",
    "out": "*{}",
    "rows": "i32",
}
FP8_FROM = 89


def variants() -> Iterator[Variant]:
    """Yield every group size with and without zeros, for one, few, many rows; split inputs; odd columns."""
    for group in (32, 64, 128):
        for zeros in (False, True):
            for block in (1, *BLOCKS_M):
                yield _w4a16(4096, 6144, group, block, zeros=zeros)
    for block in (1, *BLOCKS_M):
        yield _w4a16(4096, 6144, 32, block, floats=True)
    for block in (1, BLOCKS_M[0]):
        yield _w4a16(4096, 4096, 128, block, zeros=True, parts=8)
        yield _w4a16(576, 960, 64, block, zeros=True, dtype="fp16")
        yield _w4a16(1536, 577, 128, block, zeros=False)
    constants: dict[str, object] = {
        "COLUMNS": 4096,
        "PARTS": 8,
        "BIAS": True,
        "RESIDUAL": True,
        "BLOCK": COMBINED,
    }
    yield _variant("combine.8x4096", combine_kernel, COMBINE_TYPES, constants)
    for inner in (576, 14336):
        constants = {"INNER": inner, "BLOCK": min(fp8.BLOCK, 1024 if inner == 576 else fp8.BLOCK)}
        yield _variant(f"fp8.round_rows.{inner}", quantize_rows_kernel, ROUND_TYPES, constants)
    for block in BLOCKS_M:
        for parts in (1, 8):
            yield _fp8(4096, 6144, block, parts)


def _w4a16(
    inner: int,
    columns: int,
    group: int,
    block: int,
    *,
    zeros: bool = False,
    floats: bool = False,
    dtype: str = "bf16",
    parts: int = 1,
) -> Variant:
    kind = "e2m1" if floats else "zeros" if zeros else "symmetric"
    split = f".{parts}parts" if parts > 1 else ""
    split += ".uneven" if block == 1 and columns % 4 else ""  # its words are not loaded four at a time
    constants: dict[str, object] = {
        "INNER": inner,
        "COLUMNS": columns,
        "GROUP": group,
        "ZEROS": zeros,
        "FLOATS": floats,
        "BIAS": parts == 1,
        "RESIDUAL": parts == 1,
        "BLOCK_N": BLOCK_N,
    }
    if block == 1:
        tiles = -(-inner // (8 * BLOCK_WORDS))
        constants |= {"EACH": tiles // parts, "BLOCK_WORDS": BLOCK_WORDS}
    else:
        constants |= {"EACH": inner // group // parts, "BLOCK_M": block, "WIDE": False}
    return _variant(
        f"w4a16.{group}.{kind}.{block}rows{split}.{inner}x{columns}",
        w4a16_row_kernel if block == 1 else w4a16_kernel,
        TYPES | ({"out": "*fp32"} if parts > 1 else {}),
        constants,
        dtype,
    )


def _fp8(inner: int, columns: int, block: int, parts: int) -> Variant:
    constants: dict[str, object] = {
        "INNER": inner,
        "COLUMNS": columns,
        "EACH": inner // fp8.BLOCK_K // parts,
        "BIAS": parts == 1,
        "RESIDUAL": parts == 1,
        "BLOCK_M": block,
        "BLOCK_N": fp8.BLOCK_N,
        "BLOCK_K": fp8.BLOCK_K,
    }
    split = f".{parts}parts" if parts > 1 else ""
    types = FP8_TYPES | ({"out": "*fp32"} if parts > 1 else {})
    name = f"fp8.{block}rows{split}.{inner}x{columns}"
    return _variant(name, fp8_kernel, types, constants, least=FP8_FROM)


def _variant(
    name: str,
    kernel: Any,
    types: dict[str, str],
    constants: dict[str, object],
    dtype: str = "bf16",
    least: int = 0,
) -> Variant:
    named = {argument: types[argument].format(dtype) for argument in kernel.arg_names if argument in types}
    aligned = tuple(each for each, kind in named.items() if kind[0] == "*" or each == "x_stride")
    return Variant(f"quantization.{name}.{dtype}", kernel, named, constants, aligned, least=least)
