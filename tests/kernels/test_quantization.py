"""Quantized products against float64, and the forms on disk against numbers worked out by hand.

Sums are float32 and rounded once, so a bf16 result is the exact one's rounding but for what float32 loses. A
group's sum of whole numbers up to 15 times x reaches some hundreds before it is scaled to about 1: `SLACK`.
"""

from __future__ import annotations

import pytest
import torch

from kernels import quantization
from kernels.native.matrix import NativeMatrix
from kernels.quantization import QuantizedWeight, cpu, formats, reference
from kernels.quantization.quantize import round_to_nearest, to_e4m3, to_mxfp4
from kernels.quantization.weight import E2M1

needed = pytest.mark.usefixtures("loops")
ROUNDING = 2**-8
SLACK = 3e-5
FORMS = {
    "int4-32": (4, 32, False),
    "int4-64-zeros": (4, 64, True),
    "int4-128-zeros": (4, 128, True),
    "int8": (8, 0, False),
}


def draw(
    form: str, out: int, inner: int, *, seed: int = 0, dtype: torch.dtype = torch.bfloat16
) -> QuantizedWeight:
    """Every code, and scales that make products of about 1."""
    bits, group, zeros = FORMS[form]
    generator = torch.Generator().manual_seed(seed)
    low, high = (0, 16) if bits == 4 else (-128, 128)
    codes = torch.randint(low, high, (out, inner), generator=generator)
    lines = (out, inner // (group or inner))
    scales = (torch.rand(lines, generator=generator) + 0.5) * (0.2 if bits == 4 else 0.01) * inner**-0.5
    own = torch.randint(0, 16, lines, generator=generator).to(torch.uint8) if zeros else None
    return QuantizedWeight(codes.to(torch.uint8 if bits == 4 else torch.int8), scales.to(dtype), own, bits)


def laid_out(weight: QuantizedWeight) -> NativeMatrix:
    matrix = quantization.prepare(weight, torch.bfloat16)
    assert isinstance(matrix, NativeMatrix)
    matrix.check()
    return matrix


def randn(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


@needed
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 8, 9, 17, 33, 63, 64, 67])
@pytest.mark.parametrize(("out", "inner"), [(16, 128), (17, 256), (100, 1536), (960, 640)])
@pytest.mark.parametrize("form", FORMS)
def test_equals_the_specification(form: str, out: int, inner: int, rows: int) -> None:
    weight = draw(form, out, inner, dtype=torch.float16 if rows % 2 else torch.bfloat16)
    wide = torch.full((rows, inner + 5), float("nan")).bfloat16()
    wide[:, 2:-3] = randn(rows, inner)
    x, bias, residual = wide[:, 2:-3], randn(out, seed=2), randn(rows, out, seed=3)
    for extras in ((None, None), (bias, residual)):
        wanted = reference.linear(x.double(), weight, *extras)
        found = quantization.linear(x, laid_out(weight), *extras)
        assert ((found.double() - wanted).abs() <= ROUNDING * wanted.abs() + SLACK).all()


@needed
@pytest.mark.parametrize("form", FORMS)
def test_a_row_does_not_depend_on_the_others(form: str) -> None:
    """Bit for bit, on either side of where codes are widened once for all rows."""
    x, matrix = randn(67, 384), laid_out(draw(form, 200, 384))
    together = quantization.linear(x, matrix)
    for rows in (1, 3, 15, 64):
        parts = [quantization.linear(x[i : i + rows], matrix) for i in range(0, 67, rows)]
        assert torch.equal(torch.cat(parts), together)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_that_are_not_laid_out(form: str, dtype: torch.dtype) -> None:
    weight, x = draw(form, 48, 256), randn(5, 256).to(dtype)
    exact = reference.linear(x.double(), weight)
    theirs = x @ weight.dequantize().to(dtype).T
    found = quantization.linear(x, weight)
    floor = torch.finfo(dtype).eps * exact.abs().max()
    assert (found - exact).abs().max() <= 2 * (theirs - exact).abs().max() + floor


@needed
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("out", [5, 16, 50])
def test_layout_and_back(form: str, out: int) -> None:
    weight = draw(form, out, 256)
    back = cpu.of_native(laid_out(weight))
    assert torch.equal(back.codes, weight.codes)
    assert torch.equal(back.scales, weight.scales)
    assert torch.equal(back.dequantize(), weight.dequantize())


def test_the_formula() -> None:
    """By hand: (3 - 5) * 0.5, (15 - 5) * 0.5 in the first group; (0 - 8) * 2 in the second."""
    weight = QuantizedWeight(
        torch.tensor([[3, 15, 0, 9]], dtype=torch.uint8),
        torch.tensor([[0.5, 2.0]]),
        torch.tensor([[5, 8]], dtype=torch.uint8),
        4,
    )
    assert weight.dequantize().tolist() == [[-1.0, 5.0, -16.0, 2.0]]
    assert QuantizedWeight(weight.codes, weight.scales, None, 4).dequantize().tolist() == [
        [-2.5, 3.5, -16, 2]
    ]
    bytes_ = torch.tensor([[-128, 127]], dtype=torch.int8)
    assert QuantizedWeight(bytes_, torch.tensor([[0.25]]), None, 8).dequantize().tolist() == [[-32.0, 31.75]]


def test_compressed_tensors_packs_the_first_number_lowest() -> None:
    codes = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8, 15]], dtype=torch.uint8)
    packed = torch.tensor([[0x87654321 - 2**32, 0xF]], dtype=torch.int32)
    assert torch.equal(formats.pack_rows(codes, 4), packed)
    assert torch.equal(formats.unpack_rows(packed, 4, 9), codes)
    assert formats.pack_rows(torch.tensor([[1, 2, 3, 255]], dtype=torch.uint8), 8).tolist() == [[-0xFCFDFF]]
    columns = torch.arange(18, dtype=torch.uint8).view(9, 2) % 16
    assert torch.equal(formats.unpack_columns(formats.pack_columns(columns, 4), 4, 9), columns)
    assert formats.pack_columns(codes.T, 4).tolist() == packed.T.tolist()


def test_awq_packs_outputs_in_its_own_order() -> None:
    """Nibbles from below are columns 0, 2, 4, 6, 1, 3, 5, 7 of the transposed matrix."""
    codes = torch.arange(8, dtype=torch.uint8).view(8, 1).repeat(1, 2)
    codes[:, 1] += 8
    packed = formats.pack_awq(codes)
    assert packed.tolist() == [[0x75316420], [0xFDB9ECA8 - 2**32]]
    assert torch.equal(formats.unpack_awq(packed), codes)


@needed
def test_what_does_not_fit_is_refused() -> None:
    weight = draw("int4-64-zeros", 32, 128)
    matrix = laid_out(weight)
    with pytest.raises(ValueError, match=r"x has shape \[2, 127\]"):
        quantization.linear(randn(2, 127), matrix)
    with pytest.raises(ValueError, match=r"float32; expected bfloat16"):
        quantization.linear(randn(2, 128).float(), matrix)
    with pytest.raises(ValueError, match=r"residual has shape \[2, 31\]"):
        quantization.linear(randn(2, 128), matrix, None, randn(2, 31))
    with pytest.raises(ValueError, match=r"x has shape \[2, 64\]; expected \[rows, 128\]"):
        quantization.linear(randn(2, 64), weight)
    assert matrix.scales is not None
    for wrong, part in (
        (NativeMatrix(matrix.codes[:1], matrix.scales, matrix.zeros, 4, 32, 128), "codes is"),
        (NativeMatrix(matrix.codes, matrix.scales.float(), matrix.zeros, 4, 32, 128), "scales is"),
        (NativeMatrix(matrix.codes, matrix.scales, matrix.scales, 4, 32, 128), "zeros is"),
        (NativeMatrix(matrix.codes, None, None, 4, 32, 128), "groups of 128"),
        (NativeMatrix(matrix.codes, matrix.scales, None, 8, 32, 128), "codes is"),
    ):
        with pytest.raises(ValueError, match=part):
            wrong.check()


@pytest.mark.parametrize(("bits", "group", "zeros"), [(4, 32, True), (4, 64, False), (8, 0, False)])
def test_rounding_is_to_the_nearest_of_the_grid(bits: int, group: int, zeros: bool) -> None:
    """No number is further from its weight than half a step, except for rounding at the range's ends."""
    plain = torch.randn(24, 128, generator=torch.Generator().manual_seed(4))
    plain[3] = 0
    plain[4, :32] = 1.5
    weight = round_to_nearest(plain, bits=bits, group=group or 128, zeros=zeros)
    assert (weight.zeros is not None) is zeros
    step = weight.scales.float().repeat_interleave(weight.group, 1)
    assert ((weight.dequantize() - plain).abs() <= step * (0.5 if bits == 8 else 1.001)).all()
    assert weight.dequantize()[3].eq(0).all()


def test_fp8_is_rounded_to_the_nearest_with_a_scale_a_channel() -> None:
    plain = torch.randn(24, 128, generator=torch.Generator().manual_seed(4))
    plain[3] = 0
    weight = to_e4m3(plain)
    assert (weight.bits, weight.coding, weight.group) == (8, "e4m3", 128)
    assert weight.dequantize()[3].eq(0).all()
    largest = plain.abs().amax(1, keepdim=True)
    # Three bits of mantissa: 1/16 of a number, and of the smallest ones 2^-10 of 448; the scale is rounded.
    assert (
        (weight.dequantize() - plain).abs() <= plain.abs() / 16 * 1.01 + largest * 2**-10 / 448 * 1.01
    ).all()
    assert weight.stacks_with(to_e4m3(plain))
    assert not weight.stacks_with(round_to_nearest(plain, bits=8, group=128, zeros=False))
    assert torch.equal(QuantizedWeight.stack([weight, weight]).dequantize(), weight.dequantize().repeat(2, 1))


def test_fp8_products_round_each_row_by_itself() -> None:
    """By hand: 448 and 1 are numbers of E4M3; of 448 and 0.1 the second becomes 0.1015625."""
    weight = QuantizedWeight(
        torch.tensor([[1.0, 2.0]]).to(torch.float8_e4m3fn), torch.tensor([[0.5]]), None, 8, "e4m3"
    )
    x = torch.tensor([[448.0, 1.0], [448.0, 0.1], [0.0, 0.0]])
    assert reference.fp8_linear(x, weight).tolist() == [[225.0], [224.1015625], [0.0]]
    codes, scales = reference.quantize_rows(x * 3)
    assert scales.tolist() == [3.0, 3.0, 1.0]
    assert codes.float()[:2].tolist() == [[448.0, 1.0], [448.0, 0.1015625]]


@needed
def test_floats_are_made_whole_on_a_cpu() -> None:
    assert quantization.prepare(to_e4m3(torch.randn(16, 32)), torch.bfloat16) is None


def test_mxfp4_as_gpt_oss_packs_it() -> None:
    """By hand: lower half first; 0x3A is -1 and 1.5, scaled by 2^(129 - 127)."""
    packed = torch.zeros(2, 1, 16, dtype=torch.uint8)
    packed[1, 0, :2] = torch.tensor([0x3A, 0xF7])
    codes = formats.unpack_mxfp4(packed).flatten(1)
    scales = formats.unpack_e8m0(torch.tensor([[127], [129]], dtype=torch.uint8))
    weight = QuantizedWeight(codes, scales, None, 4, "e2m1")
    assert weight.dequantize()[1, :5].tolist() == [-4.0, 6.0, 24.0, -24.0, 0.0]
    assert weight.group == 32
    assert torch.equal(formats.pack_mxfp4(codes), packed.flatten(1))


def test_mxfp4_scales_are_powers_of_two_both_ways() -> None:
    every = torch.arange(256).to(torch.uint8)
    scales = formats.unpack_e8m0(every)
    assert scales[-1].isnan()
    assert torch.equal(scales[:-1].double(), torch.exp2(torch.arange(-127, 128).double()))
    assert torch.equal(formats.pack_e8m0(scales), every)


def test_mxfp4_round_trip() -> None:
    """Values made from codes become the same codes, except for the sign of zeros; others round to nearest."""
    generator = torch.Generator().manual_seed(4)
    codes = torch.randint(0, 16, (24, 128), generator=generator).to(torch.uint8)
    codes[:, ::32] = 7  # a 6 in each group: else its scale might be smaller
    exponents = torch.randint(100, 150, (24, 4), generator=generator).to(torch.uint8)
    weight = QuantizedWeight(codes, formats.unpack_e8m0(exponents), None, 4, "e2m1")
    again = to_mxfp4(weight.dequantize())
    assert torch.equal(formats.pack_e8m0(again.scales), exponents)
    assert torch.equal(again.dequantize(), weight.dequantize())
    assert torch.equal(formats.unpack_mxfp4(formats.pack_mxfp4(codes)), codes)
    plain = torch.randn(24, 128, generator=generator)
    plain[3] = 0
    made = to_mxfp4(plain)
    assert made.dequantize()[3].eq(0).all()
    scale = made.scales.float().repeat_interleave(32, 1)
    table = torch.tensor([*E2M1, *(-value for value in E2M1)])
    nearest = ((plain / scale)[..., None] - table).abs().amin(2) * scale
    assert ((made.dequantize() - plain).abs() <= nearest * 1.0001).all()
    ties = torch.tensor([[0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 4.0, -0.75, 7.9]]).repeat(1, 16)[:, :32]
    assert to_mxfp4(ties).dequantize()[0, :10].tolist() == [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 4.0, -1.0, 6.0]


def test_three_bits_lie_without_gaps_as_gptq_packs_them() -> None:
    """By hand: numbers 10 and 21 of 32 reach into the next word."""
    codes = torch.zeros(1, 32, dtype=torch.uint8)
    codes[0, 0], codes[0, 10], codes[0, 21], codes[0, 31] = 5, 0b110, 0b101, 7
    words = [0b101 | (0b10 << 30), 0b1 | (1 << 31), 0b10 | (0b111 << 29)]
    signed = [word - (1 << 32) if word >> 31 else word for word in words]
    assert formats.pack_dense(codes, 3).tolist() == [signed]
    drawn = torch.randint(0, 8, (7, 96), generator=torch.Generator().manual_seed(4)).to(torch.uint8)
    packed = formats.pack_dense(drawn, 3)
    assert packed.shape == (7, 9), "3 bits a number"
    assert torch.equal(formats.unpack_dense(packed, 3), drawn)


def test_rounding_to_three_bits_spans_the_range_and_needs_a_zero_of_one() -> None:
    plain = torch.randn(8, 64, generator=torch.Generator().manual_seed(2))
    weight = round_to_nearest(plain, bits=3, group=32, zeros=True)
    assert weight.bits == 4, "the products of 4 bits serve it"
    assert int(weight.codes.max()) <= 7
    assert (weight.dequantize() - plain).abs().max() <= 0.51 * float(weight.scales.float().max())
    zeros = round_to_nearest(plain.abs(), bits=3, group=32, zeros=True).zeros
    assert zeros is not None
    assert zeros.eq(1).all()
