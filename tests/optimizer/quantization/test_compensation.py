"""Rounding with and without compensation, on correlated and on uncorrelated inputs."""

from __future__ import annotations

import pytest
import torch

from kernels.quantization import QuantizedWeight
from kernels.quantization.quantize import round_to_nearest
from optimizer.quantization.compensation import compensated

OUT, INNER = 24, 256


def error(made: QuantizedWeight, weight: torch.Tensor, rows: torch.Tensor) -> float:
    return float((rows @ (made.dequantize() - weight).T).square().mean())


def drawn(mixing: float) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    weight = torch.randn(OUT, INNER)
    rows = torch.randn(2000, INNER) + mixing * (torch.randn(2000, 8) @ torch.randn(8, INNER))
    return weight, rows


@pytest.mark.parametrize("group", [32, 64, 128])
def test_errors_of_inputs_that_hang_together_are_made_up_for(group: int) -> None:
    weight, rows = drawn(1.0)
    whole = torch.ones(OUT, INNER // group)
    made = compensated(weight, rows.T @ rows / len(rows), group=group, shrink=whole)
    rounded = round_to_nearest(weight, bits=4, group=group, zeros=True)
    assert (made.shape, made.group, made.bits) == ((OUT, INNER), group, 4)
    assert error(made, weight, rows) < 0.5 * error(rounded, weight, rows)


def test_inputs_that_do_not_hang_together_are_rounded_as_they_are() -> None:
    weight, _ = drawn(0.0)
    shrink = torch.full((OUT, INNER // 64), 0.9)
    made = compensated(weight, torch.eye(INNER), group=64, shrink=shrink)
    rounded = round_to_nearest(weight, bits=4, group=64, zeros=True, shrink=shrink)
    assert torch.equal(made.codes, rounded.codes)
    assert torch.equal(made.scales, rounded.scales)
    assert rounded.zeros is not None
    assert made.zeros is not None
    assert torch.equal(made.zeros, rounded.zeros)


def test_inputs_that_no_row_has_moved_do_no_harm() -> None:
    weight, rows = drawn(1.0)
    rows[:, 10:20] = 0.0
    second = rows.T @ rows / len(rows)
    made = compensated(weight, second, group=64, shrink=torch.ones(OUT, INNER // 64)).dequantize()
    assert torch.isfinite(made).all()
    assert (made - weight).abs().max() < 2.0
    nothing = compensated(weight, torch.zeros_like(second), group=64, shrink=torch.ones(OUT, 4)).dequantize()
    assert (nothing - weight).abs().max() < 0.5


def test_a_row_of_zeros_has_finite_scales_in_16_bit_floats() -> None:
    weight = torch.randn(4, 64)
    weight[1] = 0.0
    found = compensated(weight, torch.eye(64), group=16, shrink=torch.ones(4, 4), bits=3, dtype=torch.float16)
    assert (found.scales > 0).all()
    assert found.scales.isfinite().all()
