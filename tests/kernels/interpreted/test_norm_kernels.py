"""Norm kernels against the specification in float64; outputs and what surrounds the rows are NaN before.

Twice torch's error in the same dtype is allowed, and one rounding of the largest value, for another order
of summation.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from kernels.norm import gpu, reference

DTYPES = (torch.float32, torch.float16)
EPS = 1e-5


def strided(rows: int, hidden: int, dtype: torch.dtype) -> torch.Tensor:
    wide = torch.full((rows, hidden + 3), float("nan"), dtype=dtype)
    x = torch.randn(rows, hidden) * torch.logspace(-2, 1, rows).unsqueeze(1)
    wide[:, 1 : 1 + hidden] = x.to(dtype)
    return wide[:, 1 : 1 + hidden]


def agrees(ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor) -> None:
    assert ours.isfinite().all()
    floor = torch.finfo(ours.dtype).eps * exact.abs().max()
    assert (ours.double() - exact).abs().max() <= 2 * (theirs.double() - exact).abs().max() + floor


@pytest.mark.parametrize("block", [None, 64], ids=["whole", "looped"])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "hidden"), [(1, 1), (6, 42), (3, 123), (42, 431), (2, 2049)])
def test_rows(
    rows: int,
    hidden: int,
    dtype: torch.dtype,
    residual: bool,
    block: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if block is not None:
        monkeypatch.setattr(gpu, "LARGEST_BLOCK", block)
    torch.manual_seed(rows)
    x, weight = strided(rows, hidden, dtype), torch.randn(hidden).to(dtype)
    stream = strided(rows, hidden, dtype) if residual else None
    total = x.clone() if stream is None else stream + x
    out = torch.full((rows, hidden), float("nan"), dtype=dtype)
    assert gpu.rms_norm(x, weight, EPS, residual=stream, offset=1.0, out=out) is out
    if stream is not None:
        assert torch.equal(stream, total)
    exact = reference.rms_norm(total.double(), weight.double(), EPS, 1.0)
    theirs = functional.rms_norm(total.float(), (hidden,), weight.float() + 1, EPS).to(dtype)
    agrees(out, theirs, exact)


def test_output_in_place_of_the_input() -> None:
    x, weight = strided(6, 123, torch.float32), torch.randn(123)
    exact = reference.rms_norm(x.double(), weight.double(), EPS)
    agrees(gpu.rms_norm(x, weight, EPS, out=x), exact.float(), exact)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "heads", "head_dim"), [(1, 1, 16), (6, 5, 42), (3, 40, 128), (2, 71, 64)])
def test_heads(rows: int, heads: int, head_dim: int, dtype: torch.dtype) -> None:
    torch.manual_seed(heads)
    qkv = strided(rows, (heads + 2) * head_dim, dtype).view(rows, heads + 2, head_dim)
    before, weight = qkv.clone(), torch.randn(heads, head_dim)
    gpu.head_rms_norm_(qkv[:, :heads], weight, EPS)
    assert torch.equal(qkv[:, heads:], before[:, heads:])
    exact = reference.rms_norm(before[:, :heads].double(), weight.double(), EPS)
    agrees(qkv[:, :heads], exact.to(dtype), exact)


def test_no_rows() -> None:
    assert gpu.rms_norm(torch.ones(0, 8), torch.ones(8), EPS).shape == (0, 8)
    gpu.head_rms_norm_(torch.ones(0, 2, 8), torch.ones(2, 8), EPS)


@pytest.mark.parametrize(
    ("x", "weight", "message"),
    [
        (torch.ones(8, 2).T, torch.ones(8), r"x of shape \[2, 8\] has strides \(1, 2\)"),
        (torch.ones(2, 8), torch.ones(8).half(), r"weight of shape \[8\] is torch.float16 on cpu; expected"),
    ],
)
def test_bad_arguments_are_named(x: torch.Tensor, weight: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gpu.rms_norm(x, weight, EPS)
