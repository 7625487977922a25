"""The CPU path against the fp64 reference: mixed ranks, base rows, odd shapes, long and one-row runs."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
import torch

from kernels.lora import LoraPair, Owners, Segments, apply_lora, concatenate, reference
from kernels.lora.segments import LONG_RUN

Pairs = list[list[LoraPair | None]]

CASES = {
    "decode, every adapter and base rows": ((123,), 42, (1, 64, 7, 16), [0, -1, 3, 1, 1, -1, 2, 3]),
    "one row of the last adapter": ((6,), 431, (3, 5), [1]),
    "no row has an adapter": ((42, 7), 33, (4,), [-1, -1, -1]),
    "packed slices of different widths": ((42, 6, 123), 71, (2, 9, 256), [2, 0, 1, -1, 2]),
    "long run between short ones": ((48, 16), 40, (8, 3), [0] * 3 + [1] * (LONG_RUN + 1) + [0, 1, -1]),
    "long runs only": ((31,), 2049, (4, 12), [0] * LONG_RUN + [-1] * LONG_RUN + [1] * (2 * LONG_RUN)),
    "long base run between adapters": ((20,), 24, (2, 2), [0] + [-1] * LONG_RUN + [1]),
}


def make(
    widths: Sequence[int], inner: int, ranks: Sequence[int], dtype: torch.dtype, *, holes: bool
) -> Pairs:
    """Random pairs by slice, then adapter; with `holes` some adapters leave some slices alone."""
    draw = torch.Generator().manual_seed(5)

    def pair(rank: int, width: int) -> LoraPair:
        a = torch.randn(rank, inner, generator=draw, dtype=torch.float64) / math.sqrt(inner)
        b = torch.randn(rank, width, generator=draw, dtype=torch.float64) / math.sqrt(rank)
        return LoraPair(a.to(dtype), b.to(dtype))

    return [
        [None if holes and (i + j) % 3 == 1 else pair(rank, width) for j, rank in enumerate(ranks)]
        for i, width in enumerate(widths)
    ]


def widen(pairs: Pairs) -> Pairs:
    return [[pair and LoraPair(pair.a.double(), pair.b.double()) for pair in row] for row in pairs]


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_equals_the_reference(case: str, dtype: torch.dtype, holes: bool) -> None:
    """Our error in a dtype is at most twice that of the row-by-row reference in the same dtype."""
    widths, inner, ranks, rows = CASES[case]
    pairs = make(widths, inner, ranks, dtype, holes=holes)
    draw = torch.Generator().manual_seed(7)
    x = torch.randn(len(rows), inner, generator=draw).to(dtype)
    base = torch.randn(len(rows), sum(widths), generator=draw).to(dtype)
    exact = reference.apply_lora(base.double(), x.double(), widen(pairs), widths, rows)
    plain = reference.apply_lora(base, x, pairs, widths, rows)
    out = base.clone()
    weights = concatenate(pairs, widths, Owners())
    if weights is not None:
        apply_lora(out, x, weights, Segments.of(rows))
    floor = torch.finfo(dtype).eps * exact.abs().max()
    ours, theirs = (out.double() - exact).abs().max(), (plain.double() - exact).abs().max()
    assert ours <= 2 * theirs + floor
    untouched = torch.tensor(rows) < 0
    assert torch.equal(out[untouched], base[untouched])


def test_anothers_overflow_stays_its_own() -> None:
    """Row 0's adapter overflows on its own input; row 1's input times that adapter overflows as well."""
    huge = LoraPair(torch.full((2, 8), 1e30), torch.full((2, 4), 1e30))
    mild = LoraPair(torch.ones(2, 8), torch.ones(2, 4))
    weights = concatenate([[huge, mild]], [4], Owners())
    assert weights is not None
    x = torch.full((3, 8), 1e10)
    out = torch.zeros(3, 4)
    apply_lora(out, x, weights, Segments.of([0, 1, -1]))
    assert not torch.isfinite(out[0]).any()
    assert torch.equal(out[1], torch.full((4,), 16e10))
    assert torch.equal(out[2], torch.zeros(4))


def test_segments_cover_every_row_with_an_adapter_once() -> None:
    draw = random.Random(1)
    for _ in range(200):
        rows = [
            adapter
            for _ in range(draw.randrange(1, 8))
            for adapter in [draw.randrange(-1, 3)] * draw.choice([1, 2, LONG_RUN - 1, LONG_RUN, 70])
        ]
        segments = Segments.of(rows)
        covered = [row for run in segments.runs for row in range(run.start, run.stop)]
        covered += [row for part in segments.short for row in range(part.start, part.stop)]
        assert len(covered) == len(set(covered))
        assert {row for row, adapter in enumerate(rows) if adapter >= 0} <= set(covered)
        assert all(set(rows[run.start : run.stop]) == {run.adapter} for run in segments.runs)


def test_no_adapter_no_weights() -> None:
    assert concatenate([[None, None]], [4], Owners()) is None
