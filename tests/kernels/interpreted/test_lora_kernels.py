"""Multi-LoRA kernels against the specification in float64.

Errors are compared with those of two GEMMs of torch in the same dtype; twice theirs is allowed, because
a different order of summation is as likely to be worse as better.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.lora import Segments, gpu
from kernels.lora.plan import Plan
from kernels.lora.rank_rows import RankRows
from kernels.lora.tile import Tile, tile_for
from kernels.lora.worklist import RowGroups, build
from tests.kernels.interpreted.lora_case import Case, poison

MODES = [(True, True), (True, False), (False, False)]
"""(deterministic, fused)."""


def small(rows: int, _: int) -> Tile:
    """Tiles of which every product here needs several in every direction."""
    if rows == 1:
        return Tile(rows=1, ranks=4, inner=16, outer=8, depth=2, splits=4)
    return Tile(rows=16, ranks=16, inner=16, outer=16, splits=4, group=2)


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
        ([7, 12], [42], 1, [1, 0, 0]),
        ([3], [123], 6, [0, -1]),
        ([2, 9], [16, 6], 40, [1] * 17 + [0] * 33 + [-1, 1]),
    ],
    ids=["one", "mixed", "decode", "prefill", "wide", "odd", "inner1", "inner6", "chunks"],
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
    case = Case.random(ranks, widths, inner, row_adapter, dtype)
    rows = RankRows.stacked(case.weights)
    plan = poison(Plan.build(row_adapter, rows, deterministic=deterministic))
    out = case.out.clone()
    for _ in range(2):  # twice: the counters must be as they were before
        out.copy_(case.out)
        gpu.run(out, case.x, rows, plan, fused=fused)
        case.check(out)


@pytest.mark.parametrize(("deterministic", "fused"), MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("row_adapter", [[2, 0, 3, -1, 4], [0] * 21 + [3, 3, -1, 1]], ids=["single", "few"])
def test_many_blocks_in_every_direction(
    row_adapter: list[int], dtype: torch.dtype, deterministic: bool, fused: bool
) -> None:
    """Split products, several chunks of ranks, rows and columns, several steps of the expand."""
    case = Case.random([5, 0, 11, 2, 19], [37, 8, 3], 90, row_adapter, dtype)
    rows = RankRows.stacked(case.weights)
    plan = Plan.build(row_adapter, rows, deterministic=deterministic, choose=small)
    assert all(part.splits > 1 for part in plan.parts)
    out = case.out.clone()
    gpu.run(out, case.x, rows, poison(plan), fused=fused)
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
    case = Case.random(ranks, widths, inner, row_adapter)
    out = case.out.clone()
    gpu.apply_lora(out, case.x, case.weights, Segments.group(row_adapter))
    case.check(out)


@pytest.mark.filterwarnings("ignore:invalid value")  # NumPy, which multiplies in the interpreter
def test_a_neighbours_overflow_stays_with_the_neighbour() -> None:
    case = Case.random([4, 4], [16], 32, [0, 1, 0, 1])
    case.x[0] = float("inf")
    rows = RankRows.stacked(case.weights)
    out = case.out.clone()
    gpu.run(out, case.x, rows, Plan.build(case.row_adapter, rows))
    assert not out[0].isfinite().all()
    assert out[1:].isfinite().all()


@pytest.mark.parametrize(("deterministic", "fused"), MODES)
def test_ranks_from_1_to_512_in_one_batch(deterministic: bool, fused: bool) -> None:
    case = Case.random([1, 512, 64, 3], [20, 9], 42, [1, -1, 0, 2, 3, 2])
    rows = RankRows.stacked(case.weights)
    out = case.out.clone()
    gpu.run(
        out,
        case.x,
        rows,
        poison(Plan.build(case.row_adapter, rows, deterministic=deterministic)),
        fused=fused,
    )
    case.check(out)


def test_thousands_of_rows_of_one_adapter() -> None:
    case = Case.random([2, 3], [5], 6, [0] * 2100 + [-1] + [1] * 40)
    rows = RankRows.stacked(case.weights)
    out = case.out.clone()
    gpu.run(out, case.x, rows, poison(Plan.build(case.row_adapter, rows)))
    case.check(out)


@pytest.mark.parametrize("row_adapter", [[], [-1], [-1] * 40])
@pytest.mark.parametrize("fused", [False, True])
def test_a_batch_without_adapters_launches_nothing(row_adapter: list[int], fused: bool) -> None:
    case = Case.random([4, 8], [16], 32, row_adapter)
    case.out.fill_(float("nan"))
    rows = RankRows.stacked(case.weights)
    plan = Plan.build(row_adapter, rows)
    assert plan.parts == ()
    out = case.out.clone()
    gpu.run(out, case.x, rows, plan, fused=fused)
    gpu.apply_lora(out, case.x, case.weights, Segments.group(row_adapter))
    assert torch.equal(out.view(torch.int32), case.out.view(torch.int32))


def test_an_adapter_without_ranks_touches_no_bit() -> None:
    case = Case.random([0, 8], [16], 32, [0, 1, 0, 0])
    case.out[0] = float("nan")
    out = case.out.clone()
    gpu.apply_lora(out, case.x, case.weights, Segments.group(case.row_adapter))
    for row in (0, 2, 3):
        assert torch.equal(out[row].view(torch.int32), case.out[row].view(torch.int32))


@pytest.mark.parametrize("row_adapter", [[1, 0, 2], [0, 0, 1, 1, 2], [0] * 20 + [1] * 30], ids=str)
def test_rows_that_lie_apart_and_columns_of_others(row_adapter: list[int]) -> None:
    """x and out are parts of larger tensors, at strides and starts that are no multiple of 16 bytes."""
    case = Case.random([4, 8, 3], [24, 9], 33, row_adapter)
    count = len(row_adapter)
    around_x = torch.full((2 * count, 33 + 5), float("nan"))
    around_out = torch.full((3 * count, 33 + 7), float("nan"))
    x, out = around_x[::2, 3:36], around_out[1::3, 5:38]
    x.copy_(case.x)
    out.copy_(case.out)
    rows = RankRows.stacked(case.weights)
    gpu.run(out, x, rows, poison(Plan.build(row_adapter, rows)))
    case.check(out)
    assert around_out[0::3].isnan().all()
    assert around_out[2::3].isnan().all()
    assert around_out[:, :5].isnan().all()
    assert around_out[:, 38:].isnan().all()


def test_columns_past_the_slices_stay_as_they_are() -> None:
    case = Case.random([4], [24], 32, [0, -1])
    out = torch.full((2, 31), float("nan"))
    out[:, :24] = case.out
    rows = RankRows.stacked(case.weights)
    gpu.run(out, case.x, rows, poison(Plan.build([0, -1], rows)))
    case.check(out[:, :24])
    assert out[:, 24:].isnan().all()


@pytest.mark.parametrize("name", ["x", "out"])
def test_offsets_of_rows_need_more_than_31_bits(name: str) -> None:
    """The third row begins 2^31 elements after the first; the memory between is never touched."""
    case = Case.random([4], [16], 32, [0, -1, 0], torch.float16)
    apart = torch.empty(2**31 + 64, dtype=torch.float16).as_strided((3, 32), (2**30, 1))
    rows, plan = RankRows.stacked(case.weights), Plan.build([0, -1, 0], RankRows.stacked(case.weights))
    if name == "x":
        apart.copy_(case.x)
        out = case.out.clone()
        gpu.run(out, apart, rows, plan)
    else:
        out = apart[:, :16]
        out.copy_(case.out)
        gpu.run(out, case.x, rows, plan)
    case.check(out)


def test_work_follows_the_ranks_in_the_batch_not_the_largest_one() -> None:
    rows = RankRows.stacked(Case.random([8, 512], [16], 64, [0]).weights)
    alone = RankRows.stacked(Case.random([8], [16], 64, [0]).weights)
    (low,), (same,), (high,) = (Plan.build([a], t).parts for a, t in ((0, rows), (0, alone), (1, rows)))
    assert (low.shrinks, low.expands, low.shrunk.numel()) == (same.shrinks, same.expands, same.shrunk.numel())
    assert low.shrinks == 1
    assert high.shrinks == 512 // tile_for(1).ranks
    (both,) = Plan.build([0, 1], rows).parts
    assert both.shrinks == low.shrinks + high.shrinks
    assert both.shrunk.numel() == 8 + 512


@pytest.mark.parametrize(("rows", "rank"), [(2**27, 16), (2**31 // 32, 1)])
def test_places_past_31_bits_are_refused(rows: int, rank: int) -> None:
    groups = RowGroups(*(np.array([value]) for value in (0, 0, 0, rows)))
    tile = Tile(rows=1, ranks=16, inner=16, outer=16)
    with pytest.raises(ValueError, match=r"entries of 16; expected fewer than 2\^31"):
        build(groups, (((0, rank),),), [slice(0, 16)], 16, tile, atomic=False)


def test_deterministic_mode_gives_the_same_bits_at_the_same_number_of_splits() -> None:
    case = Case.random([16, 8], [32], 2048, [0])
    rows = RankRows.stacked(case.weights)
    alone = case.out.clone()
    gpu.run(alone, case.x, rows, Plan.build([0], rows))
    x, out = case.x.repeat(3, 1), case.out.repeat(3, 1)
    gpu.run(out, x, rows, Plan.build([1, 0, -1], rows))
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
    rows = RankRows.stacked(Case.random([4], [16], 32, [0]).weights)
    with pytest.raises(ValueError, match=message):
        gpu.run(torch.zeros(out), torch.zeros(x), rows, Plan.build([0, 0], rows))


def test_a_plan_of_another_batch_or_layer_is_refused() -> None:
    case = Case.random([4, 8], [16], 32, [0, -1, 1])
    rows = RankRows.stacked(case.weights)
    with pytest.raises(ValueError, match=r"plan is of a batch of 2 rows; out has shape \[3, 16\]"):
        gpu.run(case.out, case.x, rows, Plan.build([0, 1], rows))
    for other in (
        Case.random([8, 4], [16], 32, [0]),
        Case.random([4, 8], [8, 8], 32, [0]),
        Case.random([4], [16], 32, [0]),
    ):
        stale = Plan.build([0, -1, 0], RankRows.stacked(other.weights))
        with pytest.raises(ValueError, match="expected a plan of this table"):
            gpu.run(case.out, case.x, rows, stale)
    same_layer = RankRows.stacked(Case.random([4, 8], [16], 32, [0]).weights)
    gpu.run(case.out, case.x, rows, Plan.build([0, -1, 1], same_layer))


def test_bad_values_are_named() -> None:
    case = Case.random([4], [16], 32, [0])
    rows = RankRows.stacked(case.weights)
    with pytest.raises(
        ValueError, match=r"x of shape \[1, 32\] is torch.float16 on cpu; expected torch.float32"
    ):
        gpu.run(case.out, case.x.half(), rows, Plan.build([0], rows))
    with pytest.raises(ValueError, match="row_adapter names adapter 1; there are 1"):
        Plan.build([1], rows)
    with pytest.raises(ValueError, match="rows is 3; expected a power of two"):
        Tile(rows=3, ranks=16, inner=16, outer=16, splits=1)
    with pytest.raises(ValueError, match="outer is 4; expected at least 8"):
        Tile(rows=1, ranks=16, inner=16, outer=4)
