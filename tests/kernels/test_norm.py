"""The CPU path of normalisation against the fp64 reference, its arguments, and the kernels' launch keys.

Twice the error of torch's own rms_norm in the same dtype is allowed, and one rounding of the largest value:
a different order of summation is as likely to be worse as better.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from kernels.norm import gpu, head_rms_norm_, reference, rms_norm
from tests.kernels.test_specialization import Recorder

SIZES = (1, 6, 42, 123, 431, 2049)
DTYPES = (torch.float32, torch.bfloat16)
EPS = 1e-5


def strided(rows: int, hidden: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Rows inside wider rows, whose rest is NaN. The scale differs by row, so that none's is another's."""
    wide = torch.full((rows, hidden + 3), float("nan"), dtype=dtype)
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, hidden, generator=draw) * torch.logspace(-3, 2, rows).unsqueeze(1)
    wide[:, 1 : 1 + hidden] = x.to(dtype)
    return wide[:, 1 : 1 + hidden]


def weight_of(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2)).to(dtype)


def agrees(ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor) -> None:
    assert ours.isfinite().all()
    floor = torch.finfo(ours.dtype).eps * exact.abs().max()
    assert (ours.double() - exact).abs().max() <= 2 * (theirs.double() - exact).abs().max() + floor


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", SIZES)
@pytest.mark.parametrize("rows", SIZES[:4])
def test_equals_the_reference(rows: int, hidden: int, dtype: torch.dtype) -> None:
    x, weight = strided(rows, hidden, dtype, hidden), weight_of(hidden, dtype=dtype)
    before = x.clone()
    exact = reference.rms_norm(x.double(), weight.double(), EPS)
    theirs = functional.rms_norm(x, (hidden,), weight, EPS)
    out = torch.full((rows, hidden), float("nan"), dtype=dtype)
    assert rms_norm(x, weight, EPS, out=out) is out
    assert torch.equal(x, before)
    agrees(out, theirs, exact)
    agrees(rms_norm(x, weight.float(), EPS), theirs, exact)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", SIZES)
def test_adds_to_the_residual_and_normalises_the_sum(rows: int, dtype: torch.dtype) -> None:
    x, residual, weight = strided(rows, 42, dtype, 1), strided(rows, 42, dtype, 2), weight_of(42)
    total, exact = reference.add_rms_norm(x, residual, weight, EPS)
    exact = reference.rms_norm(total.double(), weight.double(), EPS)
    ours = rms_norm(x, weight, EPS, residual=residual)
    assert torch.equal(residual, total)
    agrees(ours, functional.rms_norm(total, (42,), weight.to(dtype), EPS), exact)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gemmas_gain_is_one_more_than_its_weight(dtype: torch.dtype) -> None:
    """A bf16 weight near 0 has digits that one plus it, rounded to bf16, would lose."""
    x, weight = strided(6, 431, dtype, 3), (weight_of(431) * 1e-3).to(dtype)
    exact = reference.rms_norm(x.double(), weight.double(), EPS, 1.0)
    rounded = (x.float() * torch.rsqrt(x.float().square().mean(-1, True) + EPS) * (1 + weight.float())).to(
        dtype
    )
    ours = rms_norm(x, weight, EPS, offset=1.0)
    agrees(ours, rounded, exact)
    if dtype == torch.bfloat16:
        assert (ours != rounded).double().mean() < 0.01


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "head_dim"), [(1, 64), (5, 42), (12, 123)])
@pytest.mark.parametrize("rows", SIZES[:4])
def test_heads_of_a_packed_qkv(rows: int, heads: int, head_dim: int, dtype: torch.dtype) -> None:
    qkv = strided(rows, (heads + 2) * head_dim, dtype, 4).view(rows, heads + 2, head_dim)
    before, weight = qkv.clone(), weight_of(heads, head_dim, dtype=dtype)
    exact = reference.rms_norm(before[:, :heads].double(), weight.double(), EPS)
    head_rms_norm_(qkv[:, :heads], weight, EPS)
    assert torch.equal(qkv[:, heads:], before[:, heads:])
    one_head = [functional.rms_norm(before[:, i], (head_dim,), weight[i], EPS) for i in range(heads)]
    agrees(qkv[:, :heads], torch.stack(one_head, 1), exact)


def test_zero_rows_stay_zero_and_need_eps() -> None:
    assert torch.equal(rms_norm(torch.zeros(2, 8), torch.ones(8), EPS), torch.zeros(2, 8))
    tiny = torch.full((1, 8), 1e-6)
    expected = reference.rms_norm(tiny.double(), torch.ones(8).double(), EPS)
    torch.testing.assert_close(rms_norm(tiny, torch.ones(8), EPS).double(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weight": torch.ones(7)}, r"weight has shape \[7\]; expected \[hidden\] of x .*\[2, 8\]"),
        ({"weight": torch.ones(1)}, r"weight has shape \[1\]"),
        ({"residual": torch.ones(1, 8)}, r"residual has shape \[1, 8\], .*; expected \[2, 8\]"),
        ({"out": torch.ones(2, 8).bfloat16()}, r"out has shape \[2, 8\], torch.bfloat16; expected"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, torch.Tensor], message: str) -> None:
    weight, residual, out = (arguments.get(name) for name in ("weight", "residual", "out"))
    with pytest.raises(ValueError, match=message):
        rms_norm(
            torch.ones(2, 8), torch.ones(8) if weight is None else weight, EPS, residual=residual, out=out
        )


def test_bad_heads_are_named() -> None:
    with pytest.raises(ValueError, match=r"weight has shape \[8\]; expected \[heads, head_dim\]"):
        head_rms_norm_(torch.ones(2, 3, 8), torch.ones(8), EPS)


def test_fifty_lengths_have_one_key(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("rms_norm_kernel", "head_rms_norm_kernel")
    recorders = {name: Recorder(getattr(gpu, name)) for name in names}
    for name, recorder in recorders.items():
        monkeypatch.setattr(gpu, name, recorder)
    for rows in range(1, 51):
        x = torch.zeros(rows, 576)
        gpu.rms_norm(x, torch.ones(576), EPS, residual=torch.zeros(rows, 576))
        gpu.head_rms_norm_(x.view(rows, 9, 64), torch.ones(9, 64), EPS)
    assert [len(recorders[name].keys) for name in names] == [1, 1]
