"""A kernel with everything that the compiler must know, so that it can be compiled without a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Variant:
    """One specialization.

    Attributes:
        name: op, kernel and what tells it from its siblings, such as `lora.shrink.single.bf16`.
        kernel: the `triton.jit` function.
        types: Triton type of each argument that is not constexpr, such as `*bf16` or `i32`.
        constants: value of each constexpr.
        aligned: arguments that are multiples of 16 (pointers: bytes).
        warps, stages: as launched.
        least: compute capability that it needs at least.
        pdl_from: compute capability from which the constexpr PDL is true; none if the kernel has no PDL.
    """

    name: str
    kernel: Any
    types: Mapping[str, str]
    constants: Mapping[str, object]
    aligned: tuple[str, ...] = ()
    warps: int = 4
    stages: int = 3
    pdl_from: int | None = None
    least: int = 0


def typed(types: Mapping[str, str], dtype: str) -> dict[str, str]:
    """Return the arguments' types, `{}` in them replaced by the name of a dtype."""
    return {name: kind.format(dtype) for name, kind in types.items()}


def aligned(types: Mapping[str, str], *, even: bool) -> tuple[str, ...]:
    """Return the pointers among the arguments and, where sizes are even, the strides."""
    return tuple(name for name, kind in types.items() if kind[0] == "*" or (even and name.endswith("stride")))
