"""What the kernels' tests share."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
import torch

from kernels import native
from kernels.attention import native_attention
from kernels.lora import native_rows, products
from kernels.lora.layout import Ints, Layout


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """What PyTorch allocates without a value is NaN (`fill_uninitialized_memory`, on by default)."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def torch_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention by PyTorch's operations, also where the native library is."""
    monkeypatch.setattr(native_attention, "fits", lambda _: False)


def _with_weights(count: Ints, layout: Layout, _: torch.device) -> npt.NDArray[np.bool_]:
    return (count > 0) & (layout.elements[: len(count)] > 0)


@pytest.fixture(params=["native", "widened", "torch", "gemms"])
def rows_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Rows multiplied by the native library where it is, with either kind of products; by PyTorch's
    operations, as they pay; and by these in GEMMs, however few rows an adapter has."""
    library = native.LIBRARY
    before = None
    if request.param in ("torch", "gemms"):
        monkeypatch.setattr(native_rows, "matrices_of", lambda _: None)
    elif library is None:
        pytest.skip("no native library: no C++ compiler, or a CPU without AVX-512 BF16")
    else:
        before = library.graft_widen(request.param == "widened")
    if request.param == "gemms":
        monkeypatch.setattr(products, "_pays", _with_weights)
    yield
    if library is not None and before is not None:
        library.graft_widen(before)
