"""The CPU path against the fp64 reference: mixed ranks, base rows, odd shapes, every way to group rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import native
from kernels.lora import LoraPair, Owners, Segments, apply_lora, concatenate, embed_lora
from kernels.lora.products import Products
from tests.kernels.lora_case import DTYPES, Case, widen, within_twice

pytestmark = pytest.mark.usefixtures("poisoned_memory")

CASES: dict[str, tuple[tuple[int, ...], int, tuple[int, ...], list[int]]] = {
    "decode, every adapter and base rows": ((123,), 42, (1, 64, 7, 16), [0, -1, 3, 1, 1, -1, 2, 3]),
    "one row of the last adapter": ((6,), 431, (3, 5), [1]),
    "one row, one column": ((1,), 1, (1,), [0]),
    "no row has an adapter": ((42, 7), 33, (4,), [-1, -1, -1]),
    "packed slices of different widths": ((42, 6, 123), 71, (2, 9, 256), [2, 0, 1, -1, 2]),
    "every adapter once, in order": ((48, 16), 64, (8,) * 9, list(range(9))),
    "every adapter once, out of order": ((48, 16), 64, (8,) * 9, [3, 8, 1, 0, 7, 2, 6, 5, 4]),
    "three adapters remain of a foursome": ((48,), 64, (4,) * 7, list(range(7))),
    "as many rows each": ((48, 16), 40, (8,) * 4, [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5),
    "a few rows more here than there": ((48, 16), 40, (8,) * 4, [0] * 5 + [1] * 2 + [2] + [3] * 6),
    "one adapter has most rows, others lie around": ((48, 16), 40, (8,) * 3, [0] + [1] * 300 + [2, 0]),
    "adapters without rows": ((48,), 40, (8,) * 40, [0, 1, 38, 39]),
    "prefill and decode": ((31,), 2049, (4, 12), [0] * 40 + [-1] * 33 + [1] * 70),
    "long base run between adapters": ((20,), 24, (2, 2), [0] + [-1] * 40 + [1]),
    "rank 0 beside others": ((20, 30), 24, (0, 2, 0), [0, 1, 2, -1]),
    "ranks 1 to 512": ((123,), 431, (1, 2, 3, 6, 17, 42, 123, 512), [7, 6, 5, 4, 3, 2, 1, 0, -1, 7]),
    "wide input": ((42,), 4096, (16,) * 6, list(range(6))),
}


@pytest.mark.usefixtures("rows_by")
@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_equals_the_reference(case: str, dtype: torch.dtype, holes: bool) -> None:
    drawn = Case.random(*CASES[case], dtype, holes=holes)
    if concatenate(drawn.pairs, drawn.widths, Owners()) is not None:
        drawn.check(drawn.run())


@pytest.mark.parametrize("size", [1, 6, 42, 123, 431, 2049])
@pytest.mark.parametrize("dtype", DTYPES)
def test_odd_sizes(size: int, dtype: torch.dtype) -> None:
    for widths, inner in (((size,), 6), ((6, 42), size)):
        case = Case.random(widths, inner, (5, 8, 8, 1), [3, 1, 2, -1, 0, 0], dtype)
        case.check(case.run())


@settings(deadline=None, max_examples=60)
@given(data=st.data(), dtype=st.sampled_from(DTYPES), holes=st.booleans())
def test_any_layout(data: st.DataObject, dtype: torch.dtype, holes: bool) -> None:
    ranks = data.draw(st.lists(st.sampled_from([0, 1, 3, 8, 8, 16, 40]), min_size=1, max_size=8))
    runs = st.tuples(st.integers(-1, len(ranks) - 1), st.sampled_from([1, 1, 2, 5, 33]))
    rows = [
        a for adapter, count in data.draw(st.lists(runs, min_size=1, max_size=12)) for a in [adapter] * count
    ]
    widths = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=3))
    case = Case.random(widths, data.draw(st.integers(1, 70)), ranks, rows, dtype, holes=holes)
    if concatenate(case.pairs, case.widths, Owners()) is not None:
        case.check(case.run())


@pytest.mark.skipif(native.LIBRARY is None, reason="GEMMs may sum in another order")
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_who_shares_its_adapter(dtype: torch.dtype) -> None:
    """Bit for bit: what a tenant's row becomes must not change with the tenant's other rows."""
    rows = [1, 0, -1, 1, 2] + [1] * 70
    case = Case.random((300, 40), 101, (8, 19, 4), rows, dtype)
    together = case.run()
    for row in range(len(rows)):
        alone = [adapter if index == row else -1 for index, adapter in enumerate(rows)]
        assert torch.equal(replace(case, rows=alone).run()[row], together[row])


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_every_row_with_weights_is_multiplied_once(data: st.DataObject) -> None:
    """By its own ranks in place, or in the GEMM of its adapter."""
    ranks = data.draw(st.lists(st.sampled_from([0, 1, 8, 64, 512]), min_size=1, max_size=20).filter(any))
    rows = data.draw(st.lists(st.integers(-1, len(ranks) - 1), max_size=200))
    inner = data.draw(st.sampled_from([8, 4096]))
    pairs = [[LoraPair(torch.empty(rank, inner), torch.empty(rank, 64)) for rank in ranks]]
    layout = Owners().get(tuple(map(tuple, pairs)), [64])
    assert layout is not None
    products = Products.choose(Segments.group(rows), layout)
    numbers = torch.arange(max(len(rows), sum(ranks)))
    covered = [row for gemm in products.gemms for row in numbers[gemm.rows].tolist()]
    for gemm in products.gemms:
        mine = {rows[row] for row in numbers[gemm.rows].tolist()}
        assert len(mine) == 1
        first = sum(ranks[: min(mine)])
        assert numbers[gemm.a].tolist() == list(range(first, first + ranks[mine.pop()]))
    if products.rows is not None:
        (piece,) = products.rows.slices
        targets = numbers[piece.targets].tolist()
        covered += targets
        ends = [*piece.bags.tolist()[1:], len(piece.b)]
        for row, start, end in zip(targets, piece.bags.tolist(), ends, strict=True):
            first = sum(ranks[: rows[row]])
            assert piece.b[start:end].tolist() == list(range(first, first + ranks[rows[row]]))
            assert set(products.rows.owner[start:end].tolist()) == {row}
        assert products.rows.a.tolist() == piece.b.tolist()
    assert sorted(covered) == [row for row, adapter in enumerate(rows) if adapter >= 0 and ranks[adapter]]


def test_devices_without_a_shrink_row_by_row_take_gemms() -> None:
    """CUDA's has no bfloat16: every row with weights belongs to a GEMM, however few share its adapter."""
    pairs = (tuple(LoraPair(torch.empty(rank, 8), torch.empty(rank, 4)) for rank in (2, 0, 3)),)
    layout = Owners().get(pairs, [4])
    assert layout is not None
    rows = [0, -1, 1, 2, 0]
    elsewhere = Products.choose(Segments.group(rows, "meta"), layout)
    assert elsewhere.rows is None
    assert len(elsewhere.gemms) == 2
    assert elsewhere.gemms[1].rows == slice(3, 4)
    here = Products.choose(Segments.group(rows), layout)
    assert here.rows is not None
    assert not here.gemms


@pytest.mark.parametrize("dtype", DTYPES)
def test_thousands_of_rows(dtype: torch.dtype) -> None:
    """Three prefills and decode rows behind them, against products of whole runs in float64."""
    rows = [0] * 1500 + [2] * 2000 + [-1] * 96 + [1] * 500 + [3, 0, -1, 3, 2]
    case = Case.random((96, 32), 123, (8, 64, 16, 8), rows, dtype)
    exact, plain = case.base.double(), case.base.clone()
    for target, pairs in ((exact, widen(case.pairs)), (plain, case.pairs)):
        for adapter in range(4):
            mine = (torch.tensor(rows) == adapter).nonzero().squeeze(1)
            for columns, row in zip((slice(0, 96), slice(96, 128)), pairs, strict=True):
                pair = row[adapter]
                assert pair is not None
                product = case.x[mine].to(target.dtype) @ pair.a.T @ pair.b
                target[mine, columns] += product
    out = case.run()
    within_twice(out, plain, exact)
    assert torch.equal(out[3500:3596], case.base[3500:3596])


@pytest.mark.parametrize("dtype", DTYPES)
def test_slices_that_no_adapter_changes_keep_their_bits_and_rows_may_be_views(dtype: torch.dtype) -> None:
    case = Case.random((16, 8, 4), 24, (4, 4, 2), [0, 2, 1, -1], dtype)
    case.pairs[1] = [None] * 3
    wide_out, wide_x = torch.randn(4, 40).to(dtype), torch.randn(4, 50).to(dtype)
    out, x = wide_out[:, 3:31], wide_x[:, 7:31]
    case = replace(case, x=x, base=out.clone())
    before = wide_out.clone()
    apply_lora(out, x, case.weights, Segments.group(case.rows))
    case.check(out)
    assert torch.equal(out[:, 16:24], case.base[:, 16:24])
    assert torch.equal(wide_out[:, :3], before[:, :3])
    assert torch.equal(wide_out[:, 31:], before[:, 31:])


@pytest.mark.usefixtures("rows_by")
@pytest.mark.parametrize("dtype", DTYPES)
def test_layers_of_one_layout_share_their_plan_and_not_their_weights(dtype: torch.dtype) -> None:
    """Weights that a batch's plan outlives, and the next layer's, which may lie where they lay."""
    rows, owners = [1, 0, -1, 1], Owners()
    segments, layouts = Segments.group(rows), set()
    for layer in range(3):
        case = Case.random((20, 12), 24, (4, 9), rows, dtype)
        turned = torch.randn(24, generator=torch.Generator().manual_seed(layer)).to(dtype)
        case.pairs[:] = [[pair and LoraPair(pair.a * turned, pair.b) for pair in row] for row in case.pairs]
        weights = concatenate(case.pairs, case.widths, owners)
        assert weights is not None
        layouts.add(weights.layout)
        out = case.base.clone()
        apply_lora(out, case.x, weights, segments)
        case.check(out)
    assert len(layouts) == len(segments.plans) == 1


@pytest.mark.usefixtures("rows_by")
@pytest.mark.parametrize("dtype", DTYPES)
def test_anothers_overflow_stays_its_own(dtype: torch.dtype) -> None:
    """Row 0's adapter overflows on every input; rows that fill a product up are taken from anywhere."""
    huge = LoraPair(torch.full((2, 8), 1e30, dtype=dtype), torch.full((2, 4), 1e30, dtype=dtype))
    mild = LoraPair(torch.ones(2, 8, dtype=dtype), torch.ones(2, 4, dtype=dtype))
    low = LoraPair(torch.ones(1, 8, dtype=dtype), torch.ones(1, 4, dtype=dtype))
    weights = concatenate([[huge, mild, mild, low]], [4], Owners())
    assert weights is not None
    x = torch.full((7, 8), 1e10, dtype=dtype)
    out = torch.zeros(7, 4, dtype=dtype)
    apply_lora(out, x, weights, Segments.group([0, 1, 1, -1, 2, 3, 0]))
    assert not torch.isfinite(out[[0, 6]]).any()
    wide = x[0, 0].double() * 8
    for row, ranks in ((1, 2), (2, 2), (4, 2), (5, 1)):
        torch.testing.assert_close(out[row].double(), (wide * ranks).expand(4), rtol=1e-2, atol=0)
    assert torch.equal(out[3], torch.zeros(4, dtype=dtype))


@pytest.mark.usefixtures("rows_by")
@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_in_a_row_stays_in_it(dtype: torch.dtype) -> None:
    case = Case.random((12,), 16, (4, 4, 2), [0, -1, 1, 0, 2, 0], dtype)
    for row in (0, 1):
        x, base = case.x.clone(), case.base.clone()
        x[row], base[row] = float("nan"), float("nan")
        out = replace(case, x=x, base=base).run()
        others = [other for other in range(6) if other != row]
        assert out[row].isnan().all()
        assert torch.equal(out[others], case.run()[others])


def test_no_adapter_no_weights() -> None:
    assert concatenate([[None, None]], [4], Owners()) is None
    assert concatenate([[LoraPair(torch.empty(0, 3), torch.empty(0, 4))]], [4], Owners()) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(2, 31)}, r"x has shape \[2, 31\]; expected \[2, 32\]"),
        ({"x": torch.zeros(3, 32)}, r"x has shape \[3, 32\]; expected \[2, 32\]"),
        (
            {"x": torch.zeros(32, 2).T},
            r"x of shape \[2, 32\] has strides \[1, 2\]; expected the last to be 1",
        ),
        (
            {"x": torch.zeros(2, 32).half()},
            r"x of shape \[2, 32\] is torch.float16 on cpu; expected torch.float32",
        ),
        ({"out": torch.zeros(2, 15)}, r"out has shape \[2, 15\]; expected \[2, at least 16\]"),
        ({"out": torch.zeros(3, 16)}, r"out has shape \[3, 16\]; expected \[2, at least 16\]"),
        ({"gain": torch.ones(2, 16)}, r"gain has shape \[2, 16\], torch.float32; expected float32 \[1, 16\]"),
        ({"gain": torch.ones(1, 16).double()}, r"gain has shape \[1, 16\], torch.float64"),
        ({"bias": torch.ones(15)}, r"bias has shape \[15\]; expected \[16\]"),
        ({"segments": Segments.group([0, 1])}, "segments name adapter 1; expected less than 1"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, Any], message: str) -> None:
    weights = Case.random((16,), 32, (4,), [0, 0], torch.float32).weights
    arguments = {
        "out": torch.zeros(2, 16),
        "x": torch.zeros(2, 32),
        "segments": Segments.group([0, 0]),
        **change,
    }
    with pytest.raises(ValueError, match=message):
        apply_lora(weights=weights, **arguments)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.zeros(3, dtype=torch.int64), r"token_ids has shape \[3\], torch.int64; expected int64 \[2\]"),
        (torch.zeros(2), r"token_ids has shape \[2\], torch.float32; expected int64 \[2\]"),
        (torch.tensor([0, 32]), r"token_ids of shape \[2\] go from 0 to 32; expected 0 to 31"),
        (torch.tensor([-1, 3]), r"token_ids of shape \[2\] go from -1 to 3; expected 0 to 31"),
    ],
)
def test_bad_tokens_are_named(tokens: torch.Tensor, message: str) -> None:
    weights = Case.random((16,), 32, (4,), [0, 0], torch.float32).weights
    with pytest.raises(ValueError, match=message):
        embed_lora(torch.zeros(2, 16), tokens, weights, Segments.group([0, 0]))


def test_bad_weights_are_named() -> None:
    good = LoraPair(torch.zeros(2, 8), torch.zeros(2, 4))
    for bad, message in (
        (
            LoraPair(torch.zeros(2, 7), torch.zeros(2, 4)),
            r"a of slice 0, adapter 1 has shape \[2, 7\], .*\[2, 8\]",
        ),
        (
            LoraPair(torch.zeros(2, 8), torch.zeros(3, 4)),
            r"b of slice 0, adapter 1 has shape \[3, 4\], .*\[2, 4\]",
        ),
        (
            LoraPair(torch.zeros(2, 8).half(), torch.zeros(2, 4)),
            "adapter 1 has .* torch.float16 on cpu; expected",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            concatenate([[good, bad]], [4], Owners())
