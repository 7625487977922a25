"""The kernels against the specification in float64, block by block; what no sequence owns is NaN."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace

import pytest
import torch

from kernels.attention import AttentionPlan, gpu
from kernels.attention.tile import AttentionTile
from kernels.attention.tuning import TUNING
from kernels.attention.worklist import Heads, build
from tests.kernels.attention_batch import Batch, Shape, batch


def run(made: Batch, tile: AttentionTile | None = None) -> torch.Tensor:
    """Through the op's own worklists, or those of one tile."""
    scale, window, sinks = made.scale, made.window, made.sinks
    if tile is None:
        return gpu.attend(made.q, made.kv_pages, made.plan, scale=scale, window=window, sinks=sinks)
    heads = Heads(made.q.shape[1], made.kv_pages.shape[1], made.q.shape[2], made.q.element_size())
    work = gpu.DevicePlan.build(made.plan, heads, window, choose=lambda *_: tile)
    return gpu.run(made.q, made.kv_pages, work, scale=scale, window=window, sinks=sinks)


SPLIT = AttentionTile(rows=16, keys=16, part=16, blocks=1024)
"""Every 16 keys are a part."""


@pytest.mark.parametrize("tile", [None, SPLIT], ids=["chosen", "split"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("query_lens", "context_lens", "shape", "window", "sinks"),
    [
        ([1, 1, 1], [1, 42, 123], Shape(6, 2, 64), 0, False),
        ([1, 1], [70, 9], Shape(8, 1, 40, page_size=8), 20, True),
        ([33, 0, 6], [33, 5, 50], Shape(4, 2, 32), 0, True),
        ([20, 1], [60, 61], Shape(2, 2, 256), 7, False),
        ([1, 25, 1], [6, 90, 40], Shape(6, 2, 80), 0, False),
        ([1], [6], Shape(71, 1, 16, page_size=4), 0, False),
    ],
    ids=["decode", "window-sinks", "prefill", "wide-head", "mixed", "many-heads"],
)
def test_matches_the_specification(
    query_lens: list[int],
    context_lens: list[int],
    shape: Shape,
    window: int,
    sinks: bool,
    dtype: torch.dtype,
    tile: AttentionTile | None,
) -> None:
    made = batch(query_lens, context_lens, shape, dtype, window=window, sinks=sinks)
    result = run(made, tile)
    made.check(result)
    assert torch.equal(result, run(made, tile)), "the same batch has the same bits"


def test_decode_rows_and_chunks_have_their_own_tiles() -> None:
    made = batch([1, 40, 1], [6, 42, 123], Shape(6, 2, 16), torch.float16)
    made.check(run(made))
    (work,) = (kept for kept in made.plan.kept.values() if isinstance(kept, gpu.DevicePlan))
    assert [part.tile.rows for part in work.parts] == [16, 64]


def test_queries_may_lie_among_keys() -> None:
    """q is a view of the packed q, k, v rows, as a model computes them."""
    made = batch([1, 9], [42, 9], Shape(4, 2, 32), torch.float32)
    packed = torch.full((10, 8, 32), float("nan"))
    packed[:, :4] = made.q
    result = gpu.attend(packed[:, :4], made.kv_pages, made.plan, scale=made.scale)
    made.check(result)
    assert result.is_contiguous()


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("apart", [0, 7])
def test_keys_may_lie_in_a_pool_of_other_things(apart: int, graph: bool) -> None:
    """Page by page: two layers' keys and values of all heads, then `apart` elements of something else."""
    made = batch([1, 9], [42, 9], Shape(4, 2, 16), torch.float32)
    _, _, pages, page_size, head_dim = made.kv_pages.shape
    own = 2 * 2 * page_size * head_dim
    pool = torch.full((pages, 2 * own + apart), float("nan"))
    view = pool[:, own : 2 * own].view(pages, 2, 2, page_size, head_dim).permute(1, 2, 0, 3, 4)
    view.copy_(made.kv_pages)
    assert not view.is_contiguous()
    if graph:
        room = gpu.Capacity(rows=10, sequences=2, pages=3, items=16, places=32)
        plan = gpu.GraphPlan(Heads(4, 2, 16, 4), room, tile=SPLIT, device="cpu")
        plan.load(made.plan)
        result = torch.empty_like(made.q)
        gpu.attend_graph(result, made.q, view, plan, scale=made.scale)
    else:
        result = run(replace(made, kv_pages=view))
    made.check(result)


@pytest.mark.parametrize("dim", [0, 1, 2], ids=["values", "heads", "pages"])
def test_offsets_of_pages_need_more_than_31_bits(dim: int) -> None:
    """The last value, head or page begins 2^31 elements after the first; nothing touches what is between."""
    made = batch([1], [30], Shape(2, 2, 16), torch.float16)
    strides = list(made.kv_pages.stride())
    last = (1, 1, max(made.plan.pages[0]))[dim]
    strides[dim] = 2**31 // last + 8
    apart = torch.empty(2**32 + 2**16, dtype=torch.float16).as_strided(made.kv_pages.shape, strides)
    apart.copy_(made.kv_pages)
    made.check(run(replace(made, kv_pages=apart)))


@pytest.mark.parametrize("index", [0, 1], ids=["decode", "prefill"])
def test_the_tuner_sees_whether_a_tile_is_right(index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = TUNING.shapes(quick=True)[index]
    trial = TUNING.trial(shape, torch.device("cpu"), 1, quick=True)
    tile = TUNING.default(shape)
    parts = replace(tile, keys=16, part=16)
    assert trial.error(tile) < 1e-5
    assert trial.error(parts) < 1e-5
    monkeypatch.setattr(gpu, "combine_kernel", defaultdict(lambda: lambda *_, **__: None))
    assert math.isnan(trial.error(parts)), "rows that no one wrote"


class TestGraph:
    """A captured launch, replayed on what was loaded since: its arguments and grid never change."""

    HEADS = Heads(4, 2, 16, 4)
    ROOM = gpu.Capacity(rows=24, sequences=6, pages=10, items=64, places=128)

    @pytest.mark.parametrize("window", [0, 30])
    def test_replays_what_was_loaded(self, window: int) -> None:
        graph = gpu.GraphPlan(self.HEADS, self.ROOM, window=window, tile=SPLIT, device="cpu")
        loads = [
            ([1, 1], [5, 9]),  # at capture
            ([1, 1, 1, 1, 1], [150, 1, 42, 70, 9]),  # more sequences and longer contexts
            ([1, 0, 20], [33, 4, 60]),  # a chunk
            ([1], [6]),
        ]
        for query_lens, context_lens in loads:
            shape = Shape(4, 2, 16)
            made = batch(query_lens, context_lens, shape, torch.float32, window=window, sinks=True)
            graph.load(made.plan)
            q = torch.full((self.ROOM.rows, 4, 16), float("nan"))
            out = torch.full_like(q, 7.0)
            q[: made.plan.rows] = made.q
            gpu.attend_graph(out, q, made.kv_pages, graph, scale=made.scale, sinks=made.sinks)
            made.check(out[: made.plan.rows])
            assert (out[made.plan.rows :] == 7.0).all()

    @pytest.mark.parametrize(
        ("query_lens", "context_lens", "refused"),
        [
            ([25], [25], "rows has capacity 24; this batch needs 25"),
            ([1] * 7, [9] * 7, "sequences has capacity 6; this batch needs 7"),
            ([1], [170], "pages has capacity 10; this batch needs 11"),
            ([1] * 6, [160] * 5 + [159], None),
            ([20], [160], "places has capacity 128; this batch needs"),
        ],
    )
    def test_refuses_what_does_not_fit(
        self, query_lens: list[int], context_lens: list[int], refused: str | None
    ) -> None:
        graph = gpu.GraphPlan(self.HEADS, self.ROOM, tile=SPLIT, device="cpu")
        before = batch([1], [5], Shape(4, 2, 16), torch.float32)
        graph.load(before.plan)
        held = (graph.part.items.clone(), graph.part.row_parts.clone(), graph.table.clone())
        pages = [range(11)] * len(query_lens)
        plan = AttentionPlan.build(query_lens, context_lens, pages, page_size=16)
        if refused is None:
            graph.load(plan)
            return
        with pytest.raises(ValueError, match=refused):
            graph.load(plan)
        kept = (graph.part.items, graph.part.row_parts, graph.table)
        assert all(map(torch.equal, kept, held))

    def test_refuses_items_beyond_its_room(self) -> None:
        room = gpu.Capacity(rows=24, sequences=6, pages=10, items=5, places=128)
        graph = gpu.GraphPlan(self.HEADS, room, tile=SPLIT, device="cpu")
        plan = AttentionPlan.build([1], [96], [range(6)], page_size=16)
        work = build(plan, self.HEADS, 0, SPLIT, [0])
        assert len(work.items) == 6
        with pytest.raises(ValueError, match="items has capacity 5; this batch needs 6"):
            graph.load(plan)

    def test_bad_arguments_are_named(self) -> None:
        graph = gpu.GraphPlan(self.HEADS, self.ROOM, tile=SPLIT, device="cpu")
        made = batch([1], [5], Shape(4, 2, 16), torch.float32)
        with pytest.raises(ValueError, match=r"q has shape \[1, 4, 16\].*expected \[24, 4, 16\]"):
            gpu.attend_graph(torch.empty(24, 4, 16), made.q, made.kv_pages, graph, scale=1.0)
        with pytest.raises(ValueError, match="rows is 0; expected at least 1"):
            gpu.Capacity(rows=0, sequences=1, pages=1, items=1, places=1)


def test_a_tile_has_sizes_that_exist() -> None:
    with pytest.raises(ValueError, match="keys is 24; expected a power of two"):
        AttentionTile(rows=16, keys=24)
    with pytest.raises(ValueError, match="stages is 9; expected 1 to 8"):
        AttentionTile(rows=16, keys=16, stages=9)
    with pytest.raises(ValueError, match="unknown depth"):
        AttentionTile.parse({"rows": 16, "keys": 16, "depth": 1})
    with pytest.raises(ValueError, match="keys missing"):
        AttentionTile.parse({"rows": 16})
    assert AttentionTile.parse(SPLIT.written()) == SPLIT
