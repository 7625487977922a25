"""Attention's CPU path against the specification in float64; what no sequence owns is NaN.

Tolerance: at most twice the error of the specification computed in the same dtype, which rounds the scores.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from kernels.attention import AttentionPlan, attend, buckets, cpu, gpu
from kernels.attention.tile import AttentionTile, tile_for
from kernels.attention.tuned_tiles import LEVELS
from kernels.attention.worklist import Heads, worklists
from tests.kernels.attention_batch import Batch, Shape, batch
from tests.kernels.test_specialization import Recorder

DTYPES = [torch.float32, torch.bfloat16]

LENGTHS = {
    "one token": ([1], [1]),
    "decode of odd lengths": ([1] * 5, [1, 6, 42, 123, 431]),
    "decode of one length": ([1, 1, 1], [48, 48, 48]),
    "prefill": ([123], [123]),
    "prefill behind a history": ([42, 7], [431, 8]),
    "empty sequences between": ([0, 6, 0, 1, 0], [5, 6, 0, 42, 123]),
    "decode rows around chunks": ([1, 33, 1, 6, 1], [70, 33, 431, 50, 16]),
    "nothing": ([0, 0], [0, 9]),
}


def run(made: Batch) -> torch.Tensor:
    return attend(made.q, made.kv_pages, made.plan, scale=made.scale, window=made.window, sinks=made.sinks)


@pytest.mark.parametrize("way", ["chosen", "torch"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("window", "sinks"), [(0, False), (20, False), (0, True), (7, True), (1, False)])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_equals_the_specification(
    lengths: str, window: int, sinks: bool, dtype: torch.dtype, way: str, request: pytest.FixtureRequest
) -> None:
    if way == "torch":
        request.getfixturevalue("torch_attention")
    made = batch(*LENGTHS[lengths], Shape(6, 2, 64), dtype, window=window, sinks=sinks)
    made.check(run(made))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape",
    [
        Shape(1, 1, 16),
        Shape(9, 3, 64),
        Shape(4, 4, 80),
        Shape(12, 3, 96, page_size=1),
        Shape(32, 8, 128),
        Shape(8, 1, 40, page_size=8),
        Shape(8, 4, 256),
        Shape(71, 1, 64),
    ],
    ids=str,
)
def test_every_shape_of_heads(shape: Shape, dtype: torch.dtype) -> None:
    made = batch([1, 6, 1, 17], [42, 6, 123, 60], shape, dtype)
    made.check(run(made))


@pytest.mark.usefixtures("torch_attention")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [0, 100])
def test_pages_in_order_are_read_where_they_lie(
    window: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Views instead of copies, for chunks and for long sequences; their pages' tails are NaN as well."""
    monkeypatch.setattr(buckets, "VIEW_BYTES", 1)
    made = batch([1, 40, 1], [431, 123, 6], Shape(6, 2, 64), dtype, window=window, shuffled=False)
    kept = buckets.buckets(made.plan, window, 1024, dtype)
    assert all(isinstance(bucket.slots, slice) for bucket in kept)
    made.check(run(made))


@pytest.mark.parametrize("window", [64, 128, 200])
def test_a_window_cuts_long_chunks(window: int) -> None:
    """Rows that share a call skip keys that are outside of every row's window."""
    made = batch([431, 300], [500, 300], Shape(2, 1, 16), torch.float32, window=window)
    made.check(run(made))
    for bucket in buckets.buckets(made.plan, window, 128, torch.float32):
        assert isinstance(bucket.slots, torch.Tensor)
        assert isinstance(bucket.rows, slice)
        assert len(bucket.slots) < bucket.rows.stop - bucket.rows.start + window


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 90)), min_size=1, max_size=7),
    st.sampled_from([Shape(3, 1, 16), Shape(4, 2, 24, page_size=5)]),
    st.sampled_from([0, 1, 9, 33]),
    st.booleans(),
    st.booleans(),
)
def test_any_layout(
    lengths: list[tuple[int, int]], shape: Shape, window: int, sinks: bool, shuffled: bool
) -> None:
    query_lens = [queries for queries, _ in lengths]
    context_lens = [queries + history for queries, history in lengths]
    made = batch(
        query_lens, context_lens, shape, torch.float32, window=window, sinks=sinks, shuffled=shuffled
    )
    made.check(run(made))


@pytest.mark.usefixtures("torch_attention")
@pytest.mark.parametrize("batched", [False, True])
def test_scores_are_not_rounded(batched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores in the hundreds, of which bf16 holds no fraction: ours is as near as torch's own kernel is."""
    monkeypatch.setattr(cpu, "BATCHED_KEYS", 0 if batched else 1 << 30)
    made = batch([1, 1, 1], [123, 123, 100], Shape(4, 4, 64), torch.bfloat16)
    scale = 4.0
    ours = attend(made.q, made.kv_pages, made.plan, scale=scale)
    for row, (context, pages) in enumerate(zip(made.plan.context_lens, made.plan.pages, strict=True)):
        keys, values = made.kv_pages[:, :, pages].flatten(2, 3)[:, :, :context]
        query = made.q[row].unsqueeze(1)
        theirs = scaled_dot_product_attention(query, keys, values, scale=scale).squeeze(1)
        exact = scaled_dot_product_attention(
            query.double(), keys.double(), values.double(), scale=scale
        ).squeeze(1)
        assert (ours[row].double() - exact).abs().max() <= 2 * (theirs.double() - exact).abs().max()


@pytest.mark.usefixtures("torch_attention")
@pytest.mark.parametrize("heads", [(9, 3), (8, 8), (71, 1)])
@pytest.mark.parametrize("window", [0, 30])
def test_batched_products(window: int, heads: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "BATCHED_KEYS", 0)
    made = batch([1] * 6, [42, 1, 40, 123, 6, 431], Shape(*heads, 64), torch.bfloat16, window=window)
    made.check(run(made))


def test_sinks_without_the_cpu_kernel() -> None:
    """The form for other devices, on the same buckets."""
    made = batch([1, 6, 6, 1], [42, 6, 50, 9], Shape(6, 2, 32), torch.float32, sinks=True)
    assert made.sinks is not None
    for bucket in buckets.buckets(made.plan, 0, 512, torch.float32):
        rows = made.q[bucket.rows].shape[0]
        draw = torch.Generator().manual_seed(2)
        width = rows if bucket.causal else 50
        query = torch.randn(rows, 2, 3, 32, generator=draw).permute(1, 2, 0, 3)
        keys, values = torch.randn(2, 2, 1, width, 32, generator=draw)
        mask = None
        if not bucket.causal:
            mask = torch.zeros(rows, width).masked_fill_(
                torch.rand(rows, width, generator=draw) < 0.5, -torch.inf
            )
        logits = made.sinks.view(2, 3, 1)
        call = buckets.Bucket(slice(0, rows), 1, slice(0, width), mask, bucket.causal)
        expected = cpu._weighted(
            query, keys.expand(-1, 3, -1, -1), values.expand(-1, 3, -1, -1), call, 0.2, logits
        )
        result = cpu.with_sinks(query, keys, values, mask, bucket.causal, 0.2, logits)
        torch.testing.assert_close(result, expected)


def test_padding_costs_no_more_than_calls() -> None:
    """One long context among short ones is not what they are padded to."""
    plan = batch([1] * 32, [4000] + [50] * 31, Shape(1, 1, 16), torch.float32).plan
    found = buckets.buckets(plan, 0, 768, torch.bfloat16)
    assert [bucket.sequences for bucket in found] == [1, 31]
    widths = [len(bucket.slots) for bucket in found if isinstance(bucket.slots, torch.Tensor)]
    assert widths == [4000, 31 * 50]


def test_a_step_is_planned_once_for_all_layers() -> None:
    made = batch([1, 1], [9, 30], Shape(2, 1, 16), torch.float32)
    run(made)
    kept = list(made.plan.kept.values())
    run(made)
    assert list(map(id, made.plan.kept.values())) == list(map(id, kept))
    attend(made.q, made.kv_pages, made.plan, scale=1.0, window=4)
    assert len(made.plan.kept) == 2


@given(
    st.lists(st.tuples(st.integers(0, 70), st.integers(0, 3000)), min_size=1, max_size=6),
    st.sampled_from([(1, 1), (9, 3), (71, 1)]),
    st.sampled_from([0, 100]),
)
def test_blocks_cover_every_query_and_key_once(
    lengths: list[tuple[int, int]], heads: tuple[int, int], window: int
) -> None:
    """The CUDA path's worklists: parts of a query follow one another and hold its keys without gap."""
    query_lens = [queries for queries, _ in lengths]
    context_lens = [queries + history for queries, history in lengths]
    pages = [range(-(-context // 16)) for context in context_lens]
    plan = AttentionPlan.build(query_lens, context_lens, pages, page_size=16)
    seen: dict[int, list[tuple[int, int]]] = {}
    places: set[tuple[int, int]] = set()
    for number, work in enumerate(worklists(plan, Heads(*heads, 64, 2), window)):
        for sequence, row, count, position, first, last, place, parts in work.items.tolist():
            assert first < last
            assert count * heads[0] // heads[1] <= work.tile.rows
            assert position == context_lens[sequence] - sum(query_lens[: sequence + 1]) + row
            for token in range(count):
                seen.setdefault(row + token, []).append((first, last))
                at = place + token * parts
                assert work.row_parts[row + token, 0] <= at < work.row_parts[row + token].sum() <= work.places
                assert (number, at) not in places
                places.add((number, at))
    assert sorted(seen) == list(range(plan.rows))
    row = 0
    for queries, context in zip(query_lens, context_lens, strict=True):
        for position in range(context - queries, context):
            spans = sorted(seen[row])
            assert all(left[1] == right[0] for left, right in pairwise(spans))
            assert spans[0][0] <= (max(0, position - window + 1) if window else 0)
            assert spans[-1][1] > position
            row += 1


class TestSpecialization:
    """No length of a batch is in the key of a compiled kernel."""

    @pytest.fixture
    def recorders(self, monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
        found = []
        for name in ("attention_kernel", "combine_kernel"):
            found.append(Recorder(getattr(gpu, name)))
            monkeypatch.setattr(gpu, name, found[-1])
        return found

    @pytest.mark.parametrize("window", [False, True])
    @pytest.mark.costly("fifty shapes")
    def test_fifty_contexts_and_batch_sizes(self, window: bool, recorders: list[Recorder]) -> None:
        for length in range(1, 51):
            made = batch([1] * length, [600 + 37 * length] * length, Shape(4, 2, 16), torch.float16)
            gpu.attend(made.q, made.kv_pages, made.plan, scale=1.0, window=300 + length if window else 0)
        assert [len(recorder.keys) for recorder in recorders] == [1, 1]

    def test_fifty_chunks(self, recorders: list[Recorder]) -> None:
        for length in range(17, 67):
            made = batch([length], [2 * length], Shape(4, 2, 16), torch.float16)
            gpu.attend(made.q, made.kv_pages, made.plan, scale=1.0)
        assert [len(recorder.keys) for recorder in recorders] == [1, 0]


def test_tuned_tiles_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nearest entry's for sequences of its kind; the built-in one for others."""
    tile = AttentionTile(rows=16, keys=32, part=64, warps=2)
    shape = dict(zip(LEVELS, (2, 64, 4, 4, 8, 1000), strict=True))
    entry = {"shape": shape, "config": tile.written(), "microseconds": 1.0, "default_microseconds": 2.0}
    entry["tried"] = 9
    head = dict.fromkeys(("gpu", "torch", "triton", "date"), "x")
    content = {"op": "attention", "measured_on": "cpu", "entries": [entry], **head}
    (tmp_path / "cpu_attention.json").write_text(json.dumps(content))
    monkeypatch.setenv("GRAFTWORK_TUNED_CONFIG_DIR", str(tmp_path))
    plan = batch([1, 40], [200, 50], Shape(4, 1, 64), torch.float16).plan
    work = gpu.DevicePlan.build(plan, Heads(4, 1, 64, 2), 0)
    assert [part.tile for part in work.parts] == [tile, tile_for(160, 64)]
    assert gpu.DevicePlan.build(plan, Heads(4, 1, 64, 4), 0).parts[0].tile == tile_for(4, 64, 4)


def test_bad_arguments_are_named() -> None:
    made = batch([1], [5], Shape(4, 2, 16, page_size=4), torch.float32)
    q, kv_pages, plan = made.q, made.kv_pages, made.plan
    with pytest.raises(
        ValueError, match=r"q has shape \[2, 4, 16\].*expected \[1, heads, head_dim up to 256\]"
    ):
        attend(q.repeat(2, 1, 1), kv_pages, plan, scale=1.0)
    with pytest.raises(
        ValueError, match=r"kv_pages has shape \[2, 2, 4, 4, 8\].*expected \[2, a divisor of 4"
    ):
        attend(q, kv_pages[..., :8], plan, scale=1.0)
    with pytest.raises(
        ValueError, match=r"kv_pages has shape .*torch.float64 on cpu; expected torch.float32"
    ):
        attend(q, kv_pages.double(), plan, scale=1.0)
    with pytest.raises(ValueError, match=r"sinks has shape \[3\].*expected \[4\] on cpu"):
        attend(q, kv_pages, plan, scale=1.0, sinks=torch.zeros(3))
    with pytest.raises(ValueError, match=r"window is -1; expected at least 1, or 0"):
        attend(q, kv_pages, plan, scale=1.0, window=-1)
    with pytest.raises(ValueError, match=r"query_lens\[0\] is 6; expected 0 to context_lens\[0\], 5"):
        AttentionPlan.build([6], [5], [[0, 1]], page_size=4)
    with pytest.raises(ValueError, match=r"pages\[0\] has 1 pages; expected at least 2 for 5 tokens"):
        AttentionPlan.build([1], [5], [[0]], page_size=4)
    with pytest.raises(ValueError, match="context_lens has 2 sequences; query_lens has 1"):
        AttentionPlan.build([1], [5, 5], [[0, 1]], page_size=4)
    with pytest.raises(ValueError, match="page_size is 0; expected at least 1"):
        AttentionPlan.build([1], [5], [[0, 1]], page_size=0)


@pytest.mark.parametrize("lens", [([1, 1], [5, 9]), ([3, 1, 2], [7, 4, 2]), ([4], [4])])
def test_views_of_a_larger_pool_are_read_page_by_page(lens: tuple[list[int], list[int]]) -> None:
    made = batch(*lens, Shape(4, 2, 16, page_size=4), torch.float32)
    view = made.kv_pages.permute(2, 0, 1, 3, 4).contiguous().permute(1, 2, 0, 3, 4)
    found = attend(made.q, view, made.plan, scale=0.25)
    assert torch.equal(found, attend(made.q, made.kv_pages, made.plan, scale=0.25))
    slotwise = made.kv_pages.transpose(3, 4).contiguous().transpose(3, 4)
    with pytest.raises(ValueError, match="expected the last two dimensions contiguous"):
        attend(made.q, slotwise, made.plan, scale=1.0)


def test_new_tokens_have_their_slots() -> None:
    plan = AttentionPlan.build([2, 0, 1], [5, 3, 4], [[7, 2], [1], [9]], page_size=4)
    assert plan.slots.tolist() == [7 * 4 + 3, 2 * 4, 9 * 4 + 3]
