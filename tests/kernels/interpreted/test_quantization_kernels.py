"""The W4A16 kernel against the specification in float64; what surrounds rows and results is NaN.

The interpreter's bf16 products are wrong, so they are float32's (`wide`) on float16 and float32 inputs; twice
torch's error in the same dtype is allowed, one rounding of the largest value, and one of what is summed up.
"""

from __future__ import annotations

import pytest
import torch

from kernels.quantization import QuantizedWeight, gpu, reference

CPU = torch.device("cpu")


def draw(out: int, inner: int, group: int, *, zeros: bool, dtype: torch.dtype) -> QuantizedWeight:
    lines = (out, inner // group)
    return QuantizedWeight(
        torch.randint(0, 16, (out, inner)).to(torch.uint8),
        ((torch.rand(lines) + 0.5) * inner**-0.5).to(dtype),
        torch.randint(0, 16, lines).to(torch.uint8) if zeros else None,
        4,
    )


@pytest.mark.parametrize("programs", [1, gpu.PROGRAMS], ids=["whole", "parts"])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("rows", "out", "inner", "group"),
    [
        (1, 64, 128, 128),
        (1, 123, 576, 32),
        (1, 65, 512, 64),
        (6, 42, 96, 32),
        (17, 123, 128, 64),
        (3, 200, 64, 64),
        (70, 65, 64, 32),
    ],
)
def test_matches_the_specification(
    rows: int,
    out: int,
    inner: int,
    group: int,
    dtype: torch.dtype,
    zeros: bool,
    programs: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Inputs dealt out to several programs, and not; a last tile that is not full."""
    monkeypatch.setattr(gpu, "PROGRAMS", programs)
    torch.manual_seed(inner + rows)
    weight = draw(out, inner, group, zeros=zeros, dtype=dtype)
    wide = torch.full((rows, inner + 5), float("nan"), dtype=dtype)
    wide[:, 2:-3] = torch.randn(rows, inner).to(dtype)
    x, bias, residual = wide[:, 2:-3], torch.randn(out).to(dtype), torch.randn(rows, out).to(dtype)
    matrix = gpu.DeviceMatrix.pack(weight, CPU)
    # Sums in float32 of any order: how close torch's own comes depends on the CPU.
    terms = (x.double().abs() @ weight.dequantize().double().abs().T).max()
    order = torch.finfo(torch.float32).eps * terms
    for extras in ((None, None), (bias, None), (bias, residual)):
        exact = reference.linear(x.double(), weight, *extras)
        theirs = reference.linear(x, weight, *extras)
        found = gpu.linear(x, matrix, *extras, wide=True)
        floor = torch.finfo(dtype).eps * exact.abs().max() + order
        assert found.isfinite().all()
        assert (found.double() - exact).abs().max() <= 2 * (theirs.double() - exact).abs().max() + floor


def test_products_in_xs_own_dtype() -> None:
    """The GPU computes in this dtype; in float16 the interpreter computes it correctly too."""
    weight = draw(48, 128, 64, zeros=True, dtype=torch.float16)
    x = torch.randn(5, 128).half()
    exact = reference.linear(x.double(), weight)
    found = gpu.linear(x, gpu.DeviceMatrix.pack(weight, CPU))
    assert (found.double() - exact).abs().max() <= 2e-3 * exact.abs().max()


@pytest.mark.parametrize("programs", [1, gpu.PROGRAMS], ids=["whole", "parts"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("rows", "out", "inner"), [(1, 70, 576), (6, 42, 96), (17, 65, 128)])
def test_mxfp4_matches_the_specification(
    rows: int, out: int, inner: int, dtype: torch.dtype, programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every code, scales over some binades."""
    monkeypatch.setattr(gpu, "PROGRAMS", programs)
    torch.manual_seed(inner + rows)
    codes = torch.randint(0, 16, (out, inner)).to(torch.uint8)
    scales = torch.exp2(torch.randint(-6, 2, (out, inner // 32)).float()).bfloat16()
    weight = QuantizedWeight(codes, scales, None, 4, "e2m1")
    x, bias, residual = (
        torch.randn(rows, inner).to(dtype),
        torch.randn(out).to(dtype),
        torch.randn(rows, out).to(dtype),
    )
    terms = (x.double().abs() @ weight.dequantize().double().abs().T).max()
    exact = reference.linear(x.double(), weight, bias, residual)
    theirs = reference.linear(x, weight, bias, residual)
    found = gpu.linear(x, gpu.DeviceMatrix.pack(weight, CPU), bias, residual)
    floor = torch.finfo(dtype).eps * exact.abs().max() + torch.finfo(torch.float32).eps * terms
    assert (found.double() - exact).abs().max() <= 2 * (theirs.double() - exact).abs().max() + floor


def test_each_code_of_e2m1_in_each_place() -> None:
    """The identity as x: what comes out is the weights."""
    codes = torch.stack([torch.arange(64) % 16, (torch.arange(64) * 5 + 3) % 16]).to(torch.uint8)
    weight = QuantizedWeight(codes, torch.ones(2, 2), None, 4, "e2m1")
    matrix = gpu.DeviceMatrix.pack(weight, CPU)
    assert torch.equal(gpu.linear(torch.eye(64), matrix), weight.dequantize().T)
    rows = [gpu.linear(torch.eye(64)[row : row + 1], matrix) for row in range(64)]
    assert torch.equal(torch.cat(rows), weight.dequantize().T)


def test_inputs_are_dealt_out_where_columns_are_few() -> None:
    assert [gpu.parts_of(32, programs) for programs in (1, 64, 200, 448, 10_000)] == [16, 8, 2, 1, 1]
    assert gpu.parts_of(9, 10) == 9
    assert gpu.parts_of(7, 100) == 1


def test_the_same_bits_each_time() -> None:
    weight = draw(70, 512, 32, zeros=True, dtype=torch.float16)
    matrix = gpu.DeviceMatrix.pack(weight, CPU)
    for rows in (1, 5):
        x = torch.randn(rows, 512).half()
        assert torch.equal(gpu.linear(x, matrix), gpu.linear(x, matrix))


@pytest.mark.parametrize("zeros", [False, True])
def test_layout_and_back(zeros: bool) -> None:
    weight = draw(42, 96, 32, zeros=zeros, dtype=torch.float16)
    matrix = gpu.DeviceMatrix.pack(weight, CPU)
    assert (matrix.inner, matrix.columns, matrix.group) == (96, 42, 32)
    assert matrix.nbytes == 42 * (96 // 2 + 3 * (2 + zeros))
    back = matrix.weight()
    assert torch.equal(back.codes, weight.codes)
    assert torch.equal(back.dequantize(), weight.dequantize())


def test_no_rows() -> None:
    weight = draw(16, 32, 32, zeros=False, dtype=torch.float32)
    assert gpu.linear(torch.ones(0, 32), gpu.DeviceMatrix.pack(weight, CPU)).shape == (0, 16)


def test_what_does_not_fit_is_named() -> None:
    weight = draw(16, 64, 32, zeros=False, dtype=torch.float32)
    matrix = gpu.DeviceMatrix.pack(weight, CPU)
    with pytest.raises(ValueError, match=r"x has shape \[2, 32\]"):
        gpu.linear(torch.ones(2, 32), matrix)
    with pytest.raises(ValueError, match=r"bias has shape \[15\]"):
        gpu.linear(torch.ones(2, 64), matrix, torch.ones(15))
    with pytest.raises(ValueError, match=r"residual has shape \[1, 16\]"):
        gpu.linear(torch.ones(2, 64), matrix, None, torch.ones(1, 16))
    with pytest.raises(ValueError, match="8 bits in groups of 64"):
        gpu.DeviceMatrix.pack(QuantizedWeight(weight.codes, torch.ones(16, 1), None, 8), CPU)
