"""Shared fixtures of the kernels' tests."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
import torch

from kernels import native
from kernels.attention import native_attention
from kernels.lora import native_rows, products
from kernels.lora.layout import Ints, Layout
from kernels.native import build

INSTRUCTIONS = {
    "bf16_products": ("avx512_bf16", False),
    "widened": ("avx512_bf16", True),
    "avx512": ("avx512", True),
    "avx2": ("avx2", True),
}
"""The native loops' forms: for which instructions, and whether numbers are widened before the products."""
_BF16 = "avx512_bf16" in build.supported()
FORMS = [
    form
    for form, (instructions, _) in INSTRUCTIONS.items()
    if instructions in build.supported() and not (_BF16 and form == "avx512")
]
"""Those that this CPU runs, one of AVX-512 with widened numbers."""


@cache
def library_of(instructions: str) -> ctypes.CDLL | None:
    """Compiled, whichever the worker would take; None where this CPU lacks some, or there is no compiler."""
    if native.LIBRARY is None or instructions not in build.supported():
        return None
    return native.declare(build.load(instructions))


@pytest.fixture(scope="session", autouse=True)
def compiled_loops() -> None:
    """Compiles every form before the tests, once on a machine: it takes seconds, which no test asked for."""
    for form in FORMS:
        library_of(INSTRUCTIONS[form][0])


@pytest.fixture
def take_loops(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Has the native loops run in one of the forms of `INSTRUCTIONS`, or skips the test."""
    before: list[tuple[ctypes.CDLL, bool]] = []

    def take(form: str) -> None:
        instructions, widened = INSTRUCTIONS[form]
        library = library_of(instructions)
        if library is None:
            pytest.skip(f"no C++ compiler, or a CPU without {instructions}")
        monkeypatch.setattr(native, "LIBRARY", library)
        before.append((library, library.graft_widen(widened)))

    yield take
    for library, widened in reversed(before):
        library.graft_widen(widened)


@pytest.fixture(params=FORMS)
def loops(request: pytest.FixtureRequest, take_loops: Callable[[str], None]) -> str:
    """Every form of the native loops that this CPU runs."""
    take_loops(request.param)
    return str(request.param)


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """Memory that PyTorch allocates uninitialized is NaN (`fill_uninitialized_memory`, on by default)."""
    # `use_deterministic_algorithms` does the same, and imports torch's compiler: 2 CPU seconds for one test.
    torch.set_deterministic_debug_mode("error")
    yield
    torch.set_deterministic_debug_mode("default")


@pytest.fixture
def torch_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention by PyTorch's operations, also where the native library is."""
    monkeypatch.setattr(native_attention, "fits", lambda _: False)


def _with_weights(count: Ints, layout: Layout, _: torch.device) -> npt.NDArray[np.bool_]:
    return (count > 0) & (layout.elements[: len(count)] > 0)


@pytest.fixture(params=[*FORMS, "torch", "gemms"])
def rows_by(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, take_loops: Callable[[str], None]
) -> None:
    """Rows multiplied by every form of the native loops that this CPU runs; by PyTorch's operations, as they
    pay; and by these in GEMMs, however few rows an adapter has."""
    if request.param in FORMS:
        take_loops(request.param)
    else:
        monkeypatch.setattr(native_rows, "weights_of", lambda _: None)
    if request.param == "gemms":
        monkeypatch.setattr(products, "_pays", _with_weights)
