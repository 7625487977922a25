"""The FP8 kernels against the specification: rows are rounded bit for bit alike, sums are float32's.

The interpreter multiplies E4M3 by way of float16, which holds it exactly but for NaN.
"""

from __future__ import annotations

import pytest
import torch

from kernels.quantization import Fp8Matrix, QuantizedWeight, fp8, gpu, linear, reference
from kernels.quantization.quantize import to_e4m3

CPU = torch.device("cpu")


def bits(codes: torch.Tensor) -> torch.Tensor:
    return codes.view(torch.uint8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("rows", "inner"), [(1, 1), (3, 42), (2, 123), (1, 2049), (5, 96)])
def test_rows_are_rounded_as_specified(rows: int, inner: int, dtype: torch.dtype) -> None:
    """Numbers of every size that E4M3 has, among them its subnormal ones and what becomes nought."""
    torch.manual_seed(rows * inner)
    wide = torch.full((rows, inner + 5), float("nan"), dtype=dtype)
    wide[:, 2:-3] = (torch.randn(rows, inner) * torch.logspace(-7, 2, inner)).to(dtype)
    x = wide[:, 2:-3]
    codes, scales = fp8.quantize_rows(x)
    expected, expected_scales = reference.quantize_rows(x)
    assert torch.equal(scales, expected_scales)
    assert torch.equal(bits(codes), bits(expected))


def test_every_number_between_two_is_rounded_to_the_nearer_one_and_ties_to_even() -> None:
    numbers = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    between = (numbers[:-1] + numbers[1:]) / 2
    around = torch.cat([between, between * (1 + 2**-20), between * (1 - 2**-20), numbers])
    x = torch.cat([around, -around, torch.tensor([448.0])])[None]
    codes, scales = fp8.quantize_rows(x)
    assert scales.tolist() == [1.0]
    assert torch.equal(codes.float(), x.to(torch.float8_e4m3fn).float())


def test_noughts_and_what_is_no_number() -> None:
    x = torch.tensor([[0.0, 0.0, 0.0], [1.0, float("nan"), 2.0]])
    codes, scales = fp8.quantize_rows(x)
    assert codes[0].float().tolist() == [0.0, 0.0, 0.0]
    assert scales[0] == 1.0
    assert codes[1].float().isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("programs", [1, gpu.PROGRAMS], ids=["whole", "parts"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("rows", "out", "inner"), [(1, 64, 128), (1, 70, 576), (6, 42, 96), (17, 123, 300), (70, 65, 40)]
)
def test_matches_the_specification(
    rows: int, out: int, inner: int, dtype: torch.dtype, programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "PROGRAMS", programs)
    torch.manual_seed(inner + rows)
    weight = to_e4m3(torch.randn(out, inner) * inner**-0.5)
    x, bias, residual = (
        torch.randn(rows, inner).to(dtype),
        torch.randn(out).to(dtype),
        torch.randn(rows, out).to(dtype),
    )
    terms = (x.double().abs() @ weight.dequantize().double().abs().T).max()
    order = torch.finfo(torch.float32).eps * terms
    for extras in ((None, None), (bias, None), (bias, residual)):
        exact = reference.fp8_linear(x.double(), weight, *extras)
        theirs = reference.fp8_linear(x, weight, *extras)
        found = linear(x, Fp8Matrix.pack(weight, CPU), *extras)
        floor = torch.finfo(dtype).eps * exact.abs().max() + order
        assert found.isfinite().all()
        assert (found.double() - exact).abs().max() <= 2 * (theirs.double() - exact).abs().max() + floor


def test_a_number_that_is_none_is_not_hidden() -> None:
    weight = to_e4m3(torch.randn(16, 32))
    x = torch.randn(2, 32)
    x[1, 3] = float("nan")
    found = linear(x, Fp8Matrix.pack(weight, CPU))
    assert torch.equal(found[:1], linear(x[:1], Fp8Matrix.pack(weight, CPU)))
    # The interpreter takes E4M3's NaN for a number: what the product is given is looked at.
    assert fp8.quantize_rows(x)[0][1, 3].float().isnan()


def test_no_rows_and_what_does_not_fit() -> None:
    weight = to_e4m3(torch.randn(16, 32))
    matrix = Fp8Matrix.pack(weight, CPU)
    assert linear(torch.ones(0, 32), matrix).shape == (0, 16)
    with pytest.raises(ValueError, match=r"x has shape \[2, 31\]"):
        linear(torch.ones(2, 31), matrix)
    whole = QuantizedWeight(torch.zeros(16, 32, dtype=torch.int8), torch.ones(16, 1), None, 8)
    assert not Fp8Matrix.serves(whole, CPU)
    with pytest.raises(ValueError, match="coding 'whole': expected 'e4m3'"):
        Fp8Matrix.pack(whole, CPU)
