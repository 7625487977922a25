"""Graphs, pages, mixes, DoRA, embedding and lm_head: the forms in which multi-LoRA meets its kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.lora import LoraPair, Owners, Segments, concatenate, gpu, reference
from kernels.lora.plan import Capacity, GraphPlan, Plan
from kernels.lora.rank_rows import RankRows
from kernels.lora.tile import FEW, SINGLE, Tile
from tests.kernels.interpreted.lora_case import Case, poison


@pytest.mark.parametrize("tile", [FEW, SINGLE, Tile(rows=1, ranks=8, inner=32, outer=16, depth=8)], ids=str)
def test_graph_plan_is_right_with_more_adapters_than_at_capture(tile: Tile) -> None:
    case = Case.random([4, 8, 20, 2], [40, 24], 96, [3, 1, 0, -1, 2, 1])
    rows = RankRows.stacked(case.weights)
    plan = GraphPlan(rows, tile, Capacity(rows=16, items=900, shrunk=4000))
    tensors = [plan.part.items, plan.part.row_index, plan.part.counts, plan.part.flags, plan.part.shrunk]
    places = [tensor.data_ptr() for tensor in tensors]
    for row_adapter in ([-1] * 6, [0, -1, -1, -1, -1, -1], case.row_adapter, [2] * 6):
        case.row_adapter = row_adapter
        plan.load(row_adapter, rows)
        plan.part.shrunk.fill_(float("nan"))
        out = case.out.clone()
        gpu.run_graph(out, case.x, rows, plan)
        case.check(out)
        assert not plan.part.flags.any()
    assert places == [tensor.data_ptr() for tensor in tensors]


def test_graph_plan_refuses_what_does_not_fit_and_keeps_the_former_batch() -> None:
    case = Case.random([4, 8], [16], 32, [0, -1])
    rows = RankRows.stacked(case.weights)
    plan = GraphPlan(rows, FEW, Capacity(rows=2, items=2, shrunk=8))
    plan.load([0, -1], rows)
    with pytest.raises(ValueError, match=r"items has capacity 2; this batch needs 4"):
        plan.load([0, 1], rows)
    out = case.out.clone()
    gpu.run_graph(out, case.x, rows, plan)
    case.check(out)


def test_graph_plan_refuses_fewer_rows_than_are_loaded() -> None:
    case = Case.random([4], [16], 32, [0, 0])
    rows = RankRows.stacked(case.weights)
    plan = GraphPlan(rows, FEW, Capacity(rows=4, items=20, shrunk=100))
    plan.load([0, 0, 0], rows)
    with pytest.raises(ValueError, match=r"x has shape \[2, 32\]; expected the 3 rows of the plan or more"):
        gpu.run_graph(case.out, case.x, rows, plan)


def test_graph_plan_refuses_more_rows_than_the_capture_had() -> None:
    """The captured launch writes as many rows as its output had then, whatever the list says."""
    case = Case.random([4], [16], 32, [0, -1])
    rows = RankRows.stacked(case.weights)
    plan = GraphPlan(rows, FEW, Capacity(rows=4, items=20, shrunk=100))
    plan.load([0, -1, -1], rows)
    plan.load(case.row_adapter, rows)
    gpu.run_graph(case.out.clone(), case.x, rows, plan)
    with pytest.raises(ValueError, match=r"row_adapter has 3 rows; .* captured with room for 2"):
        plan.load([0, -1, -1], rows)
    assert plan.rows == 2


@pytest.mark.parametrize("captured", [True, False])
def test_graph_plan_refuses_a_table_less_aligned_than_the_captures(captured: bool) -> None:
    case = Case.random([4], [16], 32, [0, -1])
    rows = RankRows.stacked(case.weights)
    plan = GraphPlan(rows, FEW, Capacity(rows=2, items=20, shrunk=100))
    gpu.run_graph(case.out.clone(), case.x, replace(rows, aligned=captured), plan)
    if captured:
        with pytest.raises(ValueError, match="captured with a table that is"):
            plan.load(case.row_adapter, replace(rows, aligned=False))
    else:
        plan.load(case.row_adapter, replace(rows, aligned=False))
    plan.load(case.row_adapter, replace(rows, aligned=True))


@pytest.mark.parametrize("rows_of", [[0, 1, 2, 3], [3, 3, 3, 3], [-1, 2, -1, 0]])
@pytest.mark.parametrize("tile", [SINGLE, Tile(rows=1, ranks=8, inner=32, outer=16, depth=8)], ids=str)
def test_capacity_holds_any_batch(tile: Tile, rows_of: list[int]) -> None:
    case = Case.random([4, 8, 20, 2], [40, 24], 96, rows_of)
    rows = RankRows.stacked(case.weights)
    plan = GraphPlan(rows, tile, Capacity.for_rows(rows.columns, rows.inner, tile, rows=4, ranks=2 * 20))
    plan.load(rows_of, rows)
    out = case.out.clone()
    gpu.run_graph(out, case.x, rows, plan)
    case.check(out)


@pytest.mark.parametrize(("page_size", "b_stacked"), [(96, False), (480, True)])
def test_weights_in_pages_of_a_pool(page_size: int, b_stacked: bool) -> None:
    case = Case.random([5, 0, 3], [24, 40], 32, [2, 0, -1, 1, 2])
    pool = torch.full((40, page_size), float("nan"))
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
    assert rows.b_stacked == b_stacked, "whether no adapter's B goes on in a page elsewhere"
    for row in case.pairs:
        for adapter, pair in enumerate(row):
            if pair is not None:
                row[adapter] = LoraPair(pair.a, pair.b * scales[adapter])
    out = case.out.clone()
    gpu.run(out, case.x, rows, poison(Plan.build(case.row_adapter, rows)))
    case.check(out)


def test_only_a_launch_that_is_not_captured_spares_the_table_of_b() -> None:
    """A captured one replays on what the table holds by then, which need not follow one another."""
    # The third adapter's rows are what a launch that takes the table as stacked reads after the second's.
    case = Case.random([3, 4, 5], [24], 40, [3, -1])
    table = RankRows.stacked(case.weights)
    assert table.b_stacked
    rows = table.mixed([[(1, 1.0), (0, 1.0)]])
    assert not rows.b_stacked
    claimed = replace(rows, b_stacked=True)
    plan = GraphPlan(rows, SINGLE, Capacity(rows=2, items=20, shrunk=100))
    plan.load(case.row_adapter, rows)
    own, captured, spared = (case.out.clone() for _ in range(3))
    gpu.run(own, case.x, rows, poison(Plan.build(case.row_adapter, rows)))
    gpu.run_graph(captured, case.x, claimed, plan)
    gpu.run(spared, case.x, claimed, poison(Plan.build(case.row_adapter, claimed)))
    first, second, _ = case.pairs[0]
    assert first is not None
    assert second is not None
    case.pairs[0].append(LoraPair(torch.cat([second.a, first.a]), torch.cat([second.b, first.b])))
    case.check(own)
    case.check(captured)
    assert not torch.allclose(spared, own), "the table was read where it did not have to be"


def test_several_weighted_adapters_on_one_row() -> None:
    case = Case.random([5, 9, 2], [24], 40, [3, -1, 0])
    rows = RankRows.stacked(case.weights).mixed([[(0, 0.5), (2, -2.0)]])
    out = case.out.clone()
    gpu.run(out, case.x, rows, poison(Plan.build(case.row_adapter, rows)))
    a, c = case.pairs[0][0], case.pairs[0][2]
    assert a is not None
    assert c is not None
    both = LoraPair(torch.cat([a.a, c.a]), torch.cat([a.b * 0.5, c.b * -2.0]))
    case.pairs[0].append(both)
    case.check(out)


def test_dora_gain_leaves_bias_and_other_rows_alone() -> None:
    case = Case.random([4, 6], [20, 30], 36, [1, -1, 0])
    rows = RankRows.stacked(case.weights)
    bias = torch.randn(50)
    gain = torch.stack([torch.rand(50) + 0.5, torch.ones(50)])
    out = case.out.clone()
    gpu.run(out, case.x, rows, poison(Plan.build(case.row_adapter, rows)), gain=gain, bias=bias)
    plain = case.expected()
    torch.testing.assert_close(out[0].double(), plain[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out[2].double(), (plain[2] - bias) * gain[0] + bias, rtol=1e-5, atol=1e-5)
    assert torch.equal(out[1], case.out[1])


def test_dora_by_the_public_signature() -> None:
    case = Case.random([4, 6], [20, 30], 36, [1, -1, 0])
    gain, bias = torch.rand(2, 50) + 0.5, torch.randn(50)
    out = case.out.clone()
    gpu.apply_lora(out, case.x, case.weights, Segments.group(case.row_adapter), gain=gain, bias=bias)
    expected = reference.apply_lora(
        case.out, case.x, case.pairs, case.widths, case.row_adapter, gain=gain, bias=bias
    )
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("row_adapter", [[2, -1, 0, 1], [0, 2, 2, 0, 2, -1], [0] * 20 + [2] * 18], ids=str)
def test_embedding_looks_columns_of_a_up(row_adapter: list[int], dtype: torch.dtype) -> None:
    ranks, vocabulary, width = [5, 40, 16], 211, 37
    pairs = [LoraPair(torch.randn(rank, vocabulary), torch.randn(rank, width)) for rank in ranks]
    weights = concatenate([pairs], [width], Owners())
    assert weights is not None
    tokens = torch.randint(vocabulary, (len(row_adapter),), dtype=dtype)
    tokens[0], tokens[-1] = vocabulary - 1, 0
    base = torch.randn(len(row_adapter), width)
    out, segments = base.clone(), Segments.group(row_adapter)
    for _ in range(2):
        out.copy_(base)
        gpu.embed_lora(out, tokens, weights, segments)
        (plan,) = segments.plans.values()
        assert isinstance(plan, Plan)
        assert all(part.splits == 1 for part in plan.parts)
        poison(plan)
        wide = [LoraPair(pair.a.double(), pair.b.double()) for pair in pairs]
        expected = reference.embed_lora(base.double(), tokens.tolist(), wide, row_adapter)
        torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
        for row, adapter in enumerate(row_adapter):
            if adapter < 0:
                assert torch.equal(out[row], base[row])


def test_embedding_and_linear_plans_of_one_batch_are_kept_apart() -> None:
    """The linear form of the same weights splits A's columns; the embedding must not take its plan."""
    pairs = [LoraPair(torch.randn(3, 4096), torch.randn(3, 8))]
    weights = concatenate([pairs], [8], Owners())
    assert weights is not None
    segments, out = Segments.group([0]), torch.zeros(1, 8)
    x = torch.nn.functional.one_hot(torch.tensor([77]), 4096).float()
    gpu.apply_lora(out, x, weights, segments)
    looked_up = torch.zeros(1, 8)
    gpu.embed_lora(looked_up, torch.tensor([77]), weights, segments)
    torch.testing.assert_close(out, looked_up)
    plans = [plan for plan in segments.plans.values() if isinstance(plan, Plan)]
    assert [part.splits > 1 for plan in plans for part in plan.parts] == [True, False]


def test_lm_head_as_wide_as_a_vocabulary() -> None:
    case = Case.random([3, 2], [128256], 8, [1, -1])
    out = case.out.clone()
    gpu.apply_lora(out, case.x, case.weights, Segments.group(case.row_adapter))
    case.check(out)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.zeros(2, 1, dtype=torch.int64), r"token_ids has shape \[2, 1\]"),
        (torch.zeros(2), r"token_ids has shape \[2\], torch.float32; expected int32 or int64"),
        (torch.zeros(4, dtype=torch.int64)[::2], r"expected int32 or int64 \[rows\], contiguous"),
        (torch.zeros(3, dtype=torch.int64), r"out has shape \[2, 16\]; expected \[3, at least 16\]"),
    ],
)
def test_bad_tokens_are_named(tokens: torch.Tensor, message: str) -> None:
    weights = Case.random([4], [16], 32, [0]).weights
    with pytest.raises(ValueError, match=message):
        gpu.embed_lora(torch.zeros(2, 16), tokens, weights, Segments.group([0, 0]))
