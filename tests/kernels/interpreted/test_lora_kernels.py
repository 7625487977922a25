"""Multi-LoRA kernels against the specification in float64.

Errors are compared with those of two GEMMs of torch in the same dtype; twice theirs is allowed, because
a different order of summation is as likely to be worse as better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.lora import LoraPair, LoraWeights, Owners, Segments, concatenate, gpu, reference
from kernels.lora.plan import Capacity, GraphPlan, Plan
from kernels.lora.rank_rows import RankRows
from kernels.lora.tile import FEW, Tile

MODES = [(True, True), (True, False), (False, False)]
"""(deterministic, fused)."""


@dataclass
class Case:
    """Random weights of every slice and adapter, and a batch over them."""

    pairs: list[list[LoraPair | None]]
    widths: list[int]
    x: torch.Tensor
    out: torch.Tensor
    row_adapter: list[int]

    @classmethod
    def of(
        cls,
        ranks: Sequence[int],
        widths: Sequence[int],
        inner: int,
        row_adapter: Sequence[int],
        dtype: torch.dtype = torch.float32,
    ) -> Case:
        torch.manual_seed(len(ranks) * 1000 + inner)
        pairs: list[list[LoraPair | None]] = [
            [
                LoraPair((torch.randn(r, inner) / inner**0.5).to(dtype), torch.randn(r, width).to(dtype))
                if r
                else None
                for r in ranks
            ]
            for width in widths
        ]
        x = torch.randn(len(row_adapter), inner).to(dtype)
        return cls(
            pairs, list(widths), x, torch.randn(len(row_adapter), sum(widths)).to(dtype), list(row_adapter)
        )

    @property
    def weights(self) -> LoraWeights:
        weights = concatenate(self.pairs, self.widths, Owners())
        assert weights is not None
        return weights

    def expected(self, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        pairs = [[p and LoraPair(p.a.to(dtype), p.b.to(dtype)) for p in row] for row in self.pairs]
        return reference.apply_lora(
            self.out.to(dtype), self.x.to(dtype), pairs, self.widths, self.row_adapter
        )

    def magnitude(self) -> float:
        """What sums of the same terms are without luck in cancellation: the root of their squares' sum."""
        squares = [[p and LoraPair(p.a.double() ** 2, p.b.double() ** 2) for p in row] for row in self.pairs]
        return float(
            reference.apply_lora(
                self.out.double() ** 2, self.x.double() ** 2, squares, self.widths, self.row_adapter
            )
            .max()
            .sqrt()
        )

    def check(self, result: torch.Tensor) -> None:
        expected = self.expected()
        error = (result.double() - expected).abs().max()
        torch_error = (self.expected(self.x.dtype).double() - expected).abs().max()
        assert error <= 2 * torch_error + torch.finfo(self.x.dtype).eps * self.magnitude()
        for row, adapter in enumerate(self.row_adapter):
            if adapter < 0:
                assert torch.equal(result[row], self.out[row])


def poison(plan: Plan) -> Plan:
    """What a kernel reads before it wrote it shall be seen."""
    for part in plan.parts:
        part.shrunk.fill_(float("nan"))
    return plan


@pytest.mark.parametrize(("deterministic", "fused"), MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("ranks", "widths", "inner", "row_adapter"),
    [
        ([8], [40], 42, [0]),
        ([4, 0, 16, 40], [64, 33, 16], 123, [3, -1, 0, 2, 1, 3, -1]),
        ([64, 1, 8], [256, 64], 512, [2, 1, 0]),
        ([5, 7], [48], 300, [0] * 3 + [1] * 20 + [-1] * 2 + [0] * 2),
        ([130], [31], 431, [0, -1, 0]),
        ([0, 3], [6], 2049, [1, 0]),
    ],
    ids=["one", "mixed", "decode", "prefill", "wide", "odd"],
)
def test_matches_the_specification(
    ranks: list[int],
    widths: list[int],
    inner: int,
    row_adapter: list[int],
    dtype: torch.dtype,
    deterministic: bool,
    fused: bool,
) -> None:
    case = Case.of(ranks, widths, inner, row_adapter, dtype)
    rows = RankRows.stacked(case.weights)
    plan = poison(Plan.of(row_adapter, rows, deterministic=deterministic))
    out = case.out.clone()
    for _ in range(2):  # twice: the counters must be as they were before
        out.copy_(case.out)
        gpu.run(out, case.x, rows, plan, fused=fused)
        case.check(out)


@settings(deadline=None, max_examples=15)
@given(
    ranks=st.lists(st.integers(0, 20), min_size=1, max_size=4).filter(any),
    data=st.data(),
    inner=st.integers(1, 150),
    widths=st.lists(st.integers(1, 70), min_size=1, max_size=3),
)
def test_any_segment_layout(ranks: list[int], data: st.DataObject, inner: int, widths: list[int]) -> None:
    owner = st.integers(-1, len(ranks) - 1)
    row_adapter = data.draw(st.lists(owner, min_size=1, max_size=20))
    case = Case.of(ranks, widths, inner, row_adapter)
    out = case.out.clone()
    gpu.apply_lora(out, case.x, case.weights, Segments.of(row_adapter))
    case.check(out)


def test_graph_plan_is_right_with_more_adapters_than_at_capture() -> None:
    case = Case.of([4, 8, 20, 2], [40, 24], 96, [3, 1, 0, -1, 2, 1])
    rows = RankRows.stacked(case.weights)
    plan = GraphPlan(rows, FEW, Capacity(rows=16, items=200, shrunk=4000))
    tensors = [plan.part.items, plan.part.row_index, plan.part.counts, plan.part.flags, plan.part.shrunk]
    places = [tensor.data_ptr() for tensor in tensors]
    for row_adapter in ([-1] * 6, [0, -1, -1, -1, -1, -1], case.row_adapter, [2] * 6):
        case.row_adapter = row_adapter
        plan.load(row_adapter, rows.bounds)
        plan.part.shrunk.fill_(float("nan"))
        out = case.out.clone()
        gpu.run_graph(out, case.x, rows, plan)
        case.check(out)
        assert not plan.part.flags.any()
    assert places == [tensor.data_ptr() for tensor in tensors]


def test_graph_plan_refuses_what_does_not_fit_and_keeps_the_former_batch() -> None:
    case = Case.of([4, 8], [16], 32, [0, -1])
    rows = RankRows.stacked(case.weights)
    plan = GraphPlan(rows, FEW, Capacity(rows=2, items=2, shrunk=8))
    plan.load([0, -1], rows.bounds)
    with pytest.raises(ValueError, match=r"items has capacity 2; this batch needs 4"):
        plan.load([0, 1], rows.bounds)
    out = case.out.clone()
    gpu.run_graph(out, case.x, rows, plan)
    case.check(out)


def test_weights_in_pages_of_a_pool() -> None:
    case = Case.of([5, 0, 3], [24, 40], 32, [2, 0, -1, 1, 2])
    pool = torch.full((40, 96), float("nan"))
    free = torch.randperm(40).tolist()

    def put(matrix: torch.Tensor) -> list[int]:
        per_page = pool.shape[1] // matrix.shape[1]
        pages = []
        for first in range(0, matrix.shape[0], per_page):
            chunk = matrix[first : first + per_page]
            pages.append(free.pop())
            pool[pages[-1], : chunk.numel()] = chunk.reshape(-1)
        return pages

    pages = [[(put(p.a), put(p.b)) if p else None for p in row] for row in case.pairs]
    ranks = [[p.rank if p else 0 for p in row] for row in case.pairs]
    scales = [2.0, 1.0, 0.5]
    rows = RankRows.paged(pool, pages, ranks, [slice(0, 24), slice(24, 64)], 32, scales)
    for row in case.pairs:
        for adapter, pair in enumerate(row):
            if pair is not None:
                row[adapter] = LoraPair(pair.a, pair.b * scales[adapter])
    out = case.out.clone()
    gpu.run(out, case.x, rows, poison(Plan.of(case.row_adapter, rows)))
    case.check(out)


def test_several_weighted_adapters_on_one_row() -> None:
    case = Case.of([5, 9, 2], [24], 40, [3, -1, 0])
    rows = RankRows.stacked(case.weights).mixed([[(0, 0.5), (2, -2.0)]])
    out = case.out.clone()
    gpu.run(out, case.x, rows, poison(Plan.of(case.row_adapter, rows)))
    a, c = case.pairs[0][0], case.pairs[0][2]
    assert a is not None
    assert c is not None
    both = LoraPair(torch.cat([a.a, c.a]), torch.cat([a.b * 0.5, c.b * -2.0]))
    case.pairs[0].append(both)
    case.check(out)


def test_dora_gain_leaves_bias_and_other_rows_alone() -> None:
    case = Case.of([4, 6], [20, 30], 36, [1, -1, 0])
    rows = RankRows.stacked(case.weights)
    bias = torch.randn(50)
    gain = torch.stack([torch.rand(50) + 0.5, torch.ones(50)])
    out = case.out.clone()
    gpu.run(out, case.x, rows, poison(Plan.of(case.row_adapter, rows)), gain=gain, bias=bias)
    plain = case.expected()
    torch.testing.assert_close(out[0].double(), plain[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out[2].double(), (plain[2] - bias) * gain[0] + bias, rtol=1e-5, atol=1e-5)
    assert torch.equal(out[1], case.out[1])


@pytest.mark.filterwarnings("ignore:invalid value")  # NumPy, which multiplies in the interpreter
def test_a_neighbours_overflow_stays_with_the_neighbour() -> None:
    case = Case.of([4, 4], [16], 32, [0, 1, 0, 1])
    case.x[0] = float("inf")
    rows = RankRows.stacked(case.weights)
    out = case.out.clone()
    gpu.run(out, case.x, rows, Plan.of(case.row_adapter, rows))
    assert not out[0].isfinite().all()
    assert out[1:].isfinite().all()


def test_deterministic_mode_gives_the_same_bits_at_the_same_number_of_splits() -> None:
    case = Case.of([16, 8], [32], 2048, [0])
    rows = RankRows.stacked(case.weights)
    alone = case.out.clone()
    gpu.run(alone, case.x, rows, Plan.of([0], rows))
    x, out = case.x.repeat(3, 1), case.out.repeat(3, 1)
    gpu.run(out, x, rows, Plan.of([1, 0, -1], rows))
    assert torch.equal(out[1], alone[0])


@pytest.mark.parametrize(
    ("out", "x", "message"),
    [
        ((2, 16), (2, 31), r"x has shape \[2, 31\]; expected \[rows, 32\]"),
        ((3, 16), (2, 32), r"out has shape \[3, 16\]; expected \[2, at least 16\]"),
        ((2, 15), (2, 32), r"out has shape \[2, 15\]"),
    ],
)
def test_bad_shapes_are_named(out: tuple[int, int], x: tuple[int, int], message: str) -> None:
    rows = RankRows.stacked(Case.of([4], [16], 32, [0]).weights)
    with pytest.raises(ValueError, match=message):
        gpu.run(torch.zeros(out), torch.zeros(x), rows, Plan.of([0, 0], rows))


def test_bad_values_are_named() -> None:
    case = Case.of([4], [16], 32, [0])
    rows = RankRows.stacked(case.weights)
    with pytest.raises(
        ValueError, match=r"x of shape \[1, 32\] is torch.float16 on cpu; expected torch.float32"
    ):
        gpu.run(case.out, case.x.half(), rows, Plan.of([0], rows))
    with pytest.raises(ValueError, match="row_adapter names adapter 1; there are 1"):
        Plan.of([1], rows)
    with pytest.raises(ValueError, match="rows is 3; expected a power of two"):
        Tile(rows=3, ranks=16, inner=16, outer=16, splits=1)
