"""What the kernels' tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kernels import native
from kernels.lora import native_rows


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """What PyTorch allocates without a value is NaN (`fill_uninitialized_memory`, on by default)."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(params=["native", "torch"])
def rows_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows multiplied by the native library where it is, and by PyTorch's operations."""
    if request.param == "torch":
        monkeypatch.setattr(native_rows, "serves", lambda *_: False)
    elif native.LIBRARY is None:
        pytest.skip("no native library: no C++ compiler, or a CPU without AVX-512 BF16")
