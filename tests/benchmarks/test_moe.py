"""The pages of a layer's experts that a call touches are those of the experts that its rows chose."""

from __future__ import annotations

import pytest

from benchmarks.moe import touched_pages
from kernels import native


@pytest.mark.skipif(native.LIBRARY is None, reason="no native loops on this machine")
@pytest.mark.parametrize("rows", [1, 8])
def test_only_active_experts_are_touched(rows: int) -> None:
    figure = touched_pages(rows)
    assert figure.met, f"{figure.value} MB, of active experts {figure.baseline}"
    assert figure.ratio is not None
    assert figure.ratio > 0.9, "the kernel did not tell which pages were read"
