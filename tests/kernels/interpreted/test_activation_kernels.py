"""The activation kernel against the specification in float64; outputs and what surrounds the rows are NaN.

Twice torch's error in the same dtype is allowed, and one rounding of the largest value.
"""

from __future__ import annotations

import pytest
import torch

from kernels.activation import gpu, reference

KINDS = ("silu", "gelu_tanh", "clamped_swiglu")


def strided(rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    wide = torch.full((rows, width + 3), float("nan"), dtype=dtype)
    wide[:, 1:-2] = (torch.randn(rows, width) * 5).to(dtype)
    return wide[:, 1:-2]


# NumPy warns in the interpreter where the sigmoid of a large negative number is 1 / (1 + inf) = 0.
@pytest.mark.filterwarnings("ignore:overflow encountered in exp")
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("rows", "inter", "block"),
    [(1, 1, gpu.BLOCK), (6, 42, 16), (42, 123, gpu.BLOCK), (2, 431, 128), (1, 2049, gpu.BLOCK)],
)
def test_matches_the_specification(
    rows: int,
    inter: int,
    block: int,
    dtype: torch.dtype,
    kind: str,
    interleaved: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu, "BLOCK", block)
    torch.manual_seed(inter)
    gate_up = strided(rows, 2 * inter, dtype)
    out = torch.full((rows, inter), float("nan"), dtype=dtype)
    assert gpu.gated(gate_up, kind, interleaved=interleaved, alpha=1.5, limit=4.0, out=out) is out
    exact = reference.gated(gate_up.double(), kind, interleaved=interleaved, alpha=1.5, limit=4.0)
    theirs = reference.gated(gate_up, kind, interleaved=interleaved, alpha=1.5, limit=4.0)
    floor = torch.finfo(dtype).eps * exact.abs().max()
    assert out.isfinite().all()
    assert (out.double() - exact).abs().max() <= 2 * (theirs.double() - exact).abs().max() + floor


@pytest.mark.parametrize("kind", KINDS)
def test_a_nan_stays_in_its_row_and_stays_nan(kind: str) -> None:
    gate_up = torch.ones(3, 8)
    gate_up[1] = float("nan")
    out = gpu.gated(gate_up, kind)
    assert out[1].isnan().all()
    assert out[[0, 2]].isfinite().all()


def test_no_rows() -> None:
    assert gpu.gated(torch.ones(0, 8), "silu").shape == (0, 4)


def test_bad_strides_are_named() -> None:
    with pytest.raises(ValueError, match=r"gate_up of shape \[2, 8\] has strides \(1, 2\)"):
        gpu.gated(torch.ones(8, 2).T, "silu")
