"""The device tier over pages of the pool, on the CPU: each row is where its table says."""

from __future__ import annotations

import gc
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from kernels.lora import LoraWeights, Segments, apply_lora
from tests.worker_engine.adapters.test_batch import draw_adapter
from tests.worker_engine.conftest import EngineFactory, drain, request, tokens
from tests.worker_engine.late_copies import LateCopies, delay, tier_of
from tests.worker_engine.tiny_adapter import adapter_ref
from worker_engine import model_runner
from worker_engine.adapters.adapter import Adapter, pack_adapter
from worker_engine.adapters.device_tier import DeviceTier
from worker_engine.adapters.loader import AdapterLoader
from worker_engine.adapters.memory import AdapterMemory
from worker_engine.adapters.paged_batch import PagedAdapterBatch
from worker_engine.checkpoint.model_config import PACKED_MODULES, ModelConfig
from worker_engine.errors import AdapterRefused
from worker_engine.memory_pool import MemoryPool
from worker_engine.models import load_config
from worker_engine.sequence import Sequence as Running

PROMPT = list(range(40, 75))


@pytest.fixture
def config(tiny_model: Path) -> ModelConfig:
    return load_config(tiny_model)


@pytest.fixture
def adapters(tiny_model: Path, tiny_adapters: dict[str, Path], tmp_path: Path) -> dict[str, Adapter]:
    loader = AdapterLoader(tiny_model, tmp_path / "c", dtype=torch.float32, device=torch.device("cpu"))
    return {name: loader.load(adapter_ref(folder)) for name, folder in tiny_adapters.items()}


@pytest.fixture
def paged_engine(make_engine: EngineFactory, monkeypatch: pytest.MonkeyPatch) -> EngineFactory:
    monkeypatch.setattr(model_runner, "adapters_in_pages", lambda device: True)
    return make_engine


def page_elements(config: ModelConfig) -> int:
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * 16


def rows_in(
    memory: torch.Tensor, weights: LoraWeights | None, piece: int, index: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return A and B of one slice and adapter, read from the pool at the kernels' addresses."""
    if weights is None:
        return torch.empty(0), torch.empty(0)
    rows = weights.kept["rows"]
    first, last = rows.bounds[piece][index]  # type: ignore[attr-defined]
    flat, width = memory.view(-1), weights.layout.columns[piece]
    inner, outer = weights.layout.inner, width.stop - width.start
    a, b = rows.a[first:last].tolist(), rows.b[first:last].tolist()  # type: ignore[attr-defined]
    return (
        torch.stack([flat[at : at + inner] for at in a]) if a else torch.empty(0),
        torch.stack([flat[at : at + outer] for at in b]) if b else torch.empty(0),
    )


def check(
    memory: torch.Tensor, batch: PagedAdapterBatch, config: ModelConfig, adapter: Adapter, index: int
) -> None:
    for layer in range(config.num_layers):
        for name, modules in PACKED_MODULES.items():
            lora = batch.layers[layer][name]
            for piece, module in enumerate(modules):
                a, b = rows_in(memory, None if lora is None else lora.weights, piece, index)
                pair = adapter.layers[layer].get(module)
                assert len(a) == len(b) == (0 if pair is None else pair.rank)
                if pair is not None:
                    assert torch.equal(a, pair.a)
                    assert torch.equal(b, pair.b)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.costly("many loads of adapters")
def test_long_churn_neither_fragments_nor_mixes_pages(seed: int, config: ModelConfig) -> None:
    """Adapters and KV pages come and go at random: free pages can be had, weights stay byte for byte."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    size = page_elements(config)
    adapters = [draw_adapter(config, draw, number) for number in range(12)]
    memory = torch.zeros(60, size)
    tier = DeviceTier(memory, config)
    pool = MemoryPool(len(memory))
    held = AdapterMemory(pool, page_bytes=4 * size, max_adapters=6, tier=tier)
    batch = PagedAdapterBatch(config, tier)
    running: list[Adapter] = []
    kv: list[list[int]] = []
    scattered = 0
    for _ in range(400):
        adapter = draw.choice(adapters)
        if draw.random() < 0.3 and pool.can_allocate(20):
            pool.free(pool.allocate(20))  # a sequence that left before its first step
        if draw.random() < 0.4 and running:
            held.release(running.pop(draw.randrange(len(running))))
        elif draw.random() < 0.3:
            held.prefetch(adapter)
        elif held.has_slot(adapter) and pool.can_allocate(held.num_missing_pages(adapter)):
            held.acquire(adapter)  # raises when free pages cannot be had
            running.append(adapter)
        if kv and draw.random() < 0.5:
            pool.free(kv.pop(draw.randrange(len(kv))))
        elif pool.can_allocate(count := draw.randrange(1, 9)):
            kv.append(pool.allocate(count))
        for page in pool.take_fresh():
            memory[page] = float("nan")  # as the engine clears them, but so that it would be noticed
        owned = [page for pages in held.active_pages() for page in pages] + [p for pages in kv for p in pages]
        assert len(set(owned)) == len(owned) == pool.num_used
        assert pool.num_used + pool.num_free == pool.capacity
        assert len(tier) == held.num_resident
        scattered += any(
            pages != list(range(pages[0], pages[0] + len(pages)))
            and pages != list(range(pages[0], pages[0] - len(pages), -1))
            for pages in held.active_pages()
        )
        if running:
            for adapter, index in zip(running, batch.select(running), strict=True):
                check(memory, batch, config, adapter, index)
    assert scattered > 100, "pages were neighbours throughout: the test shows nothing"
    assert tier.num_loads > 30


def test_a_layer_waits_for_its_own_weights_only(config: ModelConfig) -> None:
    adapter = draw_adapter(config, random.Random(3), 1)
    memory = torch.full((40, page_elements(config)), float("nan"))
    stream = LateCopies()
    tier = DeviceTier(memory, config, copies=stream)
    tier.load(adapter, list(range(1, 1 + tier.pages_of(adapter))))
    batch = PagedAdapterBatch(config, tier)
    assert batch.select([adapter]) == [0]
    assert stream.done == 0, "the host waited for a copy"
    done = []
    for layer in range(config.num_layers):
        batch.layers[layer]
        done.append(stream.done)
        assert all(torch.isfinite(part).all() for part in _weights_of(memory, batch, layer))
    assert done == sorted(set(done)), "a layer waited for the ones behind it"
    check(memory, batch, config, adapter, 0)


def _weights_of(memory: torch.Tensor, batch: PagedAdapterBatch, layer: int) -> list[torch.Tensor]:
    return [
        part
        for name, modules in PACKED_MODULES.items()
        if (lora := batch.layers[layer][name]) is not None
        for piece in range(len(modules))
        for part in rows_in(memory, lora.weights, piece, 0)
    ]


@pytest.mark.parametrize("name", ["all", "patterns", "rslora", "narrow"])
def test_weights_that_arrive_during_the_step_say_the_same(
    name: str, tiny_model: Path, adapters: dict[str, Adapter], paged_engine: EngineFactory
) -> None:
    adapter = adapters[name]
    answers = []
    for late in (False, True):
        engine = paged_engine(tiny_model)
        stream = delay(engine) if late else None
        for owner in (adapter, None, adapters["plain"]):
            engine.add_request(request(str(owner and owner.sha256), PROMPT, 12), owner)
        found = drain(engine)
        answers.append({key: tokens(deltas) for key, deltas in found.items()})
        assert stream is None or stream.done > 0
    assert answers[0] == answers[1]
    assert len(set(map(tuple, answers[0].values()))) == 3


def test_one_that_lost_its_pages_is_found_where_it_came_back(config: ModelConfig) -> None:
    draw = random.Random(1)
    adapters = [draw_adapter(config, draw, number) for number in range(2)]
    memory = torch.zeros(60, page_elements(config))
    tier = DeviceTier(memory, config)
    batch = PagedAdapterBatch(config, tier)
    count = tier.pages_of(adapters[0])
    tier.load(adapters[0], list(range(1, 1 + count)))
    batch.select([adapters[0]])
    tier.drop(adapters[0].sha256)
    memory[1 : 1 + count] = float("nan")
    tier.load(adapters[0], list(range(30, 30 + count)))
    check(memory, batch, config, adapters[0], batch.select([adapters[0]])[0])


def test_the_pools_rows_compute_what_the_weights_do(config: ModelConfig) -> None:
    draw = random.Random(5)
    adapters = [draw_adapter(config, draw, number) for number in range(3)]
    tier = DeviceTier(torch.randn(90, page_elements(config)), config)
    pages = list(range(1, 90))
    draw.shuffle(pages)
    for adapter in adapters:
        tier.load(adapter, [pages.pop() for _ in range(tier.pages_of(adapter))])
    batch = PagedAdapterBatch(config, tier)
    indices = batch.select([*adapters, None])
    segments = Segments.group(indices)
    for layer in range(config.num_layers):
        for name, modules in PACKED_MODULES.items():
            shapes = [config.linear_shapes[module] for module in modules]
            x, out = torch.randn(4, shapes[0][1]), torch.zeros(4, sum(width for width, _ in shapes))
            lora = batch.layers[layer][name]
            if lora is not None and lora.weights is not None:
                apply_lora(out, x, lora.weights, segments)
            held: Sequence[Adapter | None] = [*adapters, None]
            for row, owner in enumerate(held):
                parts = [
                    torch.zeros(width)
                    if owner is None or (pair := owner.layers[layer].get(module)) is None
                    else x[row] @ pair.a.T @ pair.b
                    for module, (width, _) in zip(modules, shapes, strict=True)
                ]
                torch.testing.assert_close(out[row], torch.cat(parts), rtol=1e-4, atol=1e-4)


def test_a_row_longer_than_a_page_is_refused(config: ModelConfig) -> None:
    tier = DeviceTier(torch.zeros(4, config.hidden_size - 1), config)
    with pytest.raises(
        AdapterRefused, match=f"{config.hidden_size} elements, a page .* {config.hidden_size - 1}"
    ):
        tier.pages_of(draw_adapter(config, random.Random(1), 1))


def test_the_buffer_holds_every_weight_once(config: ModelConfig) -> None:
    adapter = draw_adapter(config, random.Random(2), 1)
    same = pack_adapter(adapter, pinned=False)
    assert same.buffer is not None
    assert same.buffer.nbytes == adapter.nbytes
    for before, after in zip(adapter.layers, same.layers, strict=True):
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name].a, after[name].a) for name in before)
        assert all(torch.equal(before[name].b, after[name].b) for name in before)
        held = same.buffer.untyped_storage().data_ptr()
        assert all(pair.b.untyped_storage().data_ptr() == held for pair in after.values())


def test_what_waits_is_brought_to_the_device_meanwhile(
    tiny_model: Path, adapters: dict[str, Adapter], paged_engine: EngineFactory
) -> None:
    """The copy begins on arrival, even with a full batch, and only the sequence's own step waits for it."""
    engine = paged_engine(tiny_model, max_num_seqs=1)
    engine.add_request(request("first", PROMPT, 8), adapters["all"])
    engine.step()
    stream = delay(engine)
    engine.add_request(request("second", PROMPT, 8), adapters["plain"])
    engine.step()
    [waiting] = list(engine.scheduler.waiting)
    assert isinstance(waiting, Running)
    assert waiting.request.request_id == "second"
    assert tier_of(engine).get(adapters["plain"].sha256) is not None
    assert (len(stream.queue) > 0, stream.done) == (True, 0)
    loads = tier_of(engine).num_loads
    found = drain(engine)
    assert tier_of(engine).num_loads == loads, "it was copied again when its turn came"
    assert stream.done > 0
    alone = paged_engine(tiny_model)
    alone.add_request(request("second", PROMPT, 8), adapters["plain"])
    assert tokens(found["second"]) == tokens(drain(alone)["second"])


def test_those_that_wait_do_not_push_each_other_out(
    tiny_model: Path, adapters: dict[str, Adapter], paged_engine: EngineFactory
) -> None:
    """With few pages, nothing is copied in vain step after step."""
    engine = paged_engine(tiny_model, max_num_seqs=1, memory_gib=0.0007)
    tier = tier_of(engine)
    owners = [replace(adapters["rslora"], sha256=f"{number:064x}") for number in range(5)]
    assert 2 * tier.pages_of(owners[0]) < engine.pool.capacity < 4 * tier.pages_of(owners[0])
    for owner in owners:
        engine.add_request(request(owner.sha256, PROMPT, 16), owner)
    found = drain(engine)
    assert [len(tokens(found[owner.sha256])) for owner in owners] == [16] * 5
    assert tier.num_loads <= 2 * len(owners)


def test_figures_of_the_copies(config: ModelConfig) -> None:
    tier = DeviceTier(torch.zeros(60, page_elements(config)), config)
    adapters = [draw_adapter(config, random.Random(seed), seed) for seed in range(2)]
    for number, adapter in enumerate(adapters):
        tier.load(adapter, list(range(30 * number, 30 * number + tier.pages_of(adapter))))
    assert tier.num_bytes == sum(adapter.nbytes for adapter in adapters)
    assert tier.load_seconds.count == 1, "the first was done when the second began"


def filled_pool(config: ModelConfig, stream: LateCopies) -> tuple[DeviceTier, MemoryPool, AdapterMemory]:
    size = page_elements(config)
    tier = DeviceTier(torch.zeros(60, size), config, copies=stream)
    pool = MemoryPool(60)
    return tier, pool, AdapterMemory(pool, page_bytes=4 * size, max_adapters=6, tier=tier)


def test_pages_of_one_that_left_before_it_arrived_are_not_overwritten_by_it(config: ModelConfig) -> None:
    """KV pages evict the adapter of a waiting sequence during its copy: they keep the next step's writes."""
    stream = LateCopies()
    tier, pool, held = filled_pool(config, stream)
    adapter = draw_adapter(config, random.Random(3), 1)
    held.acquire(adapter)
    held.release(adapter)
    assert stream.queue
    kv = pool.allocate(pool.num_free)
    assert not held.num_resident
    tier.memory[kv] = 7.0
    stream.run(stream.done + len(stream.queue))
    assert (tier.memory[kv] == 7.0).all()


def test_copies_that_fail_leave_no_page_behind(config: ModelConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The adapter can be loaded once they succeed; what was under way does not come afterwards."""
    stream = LateCopies()
    tier, pool, held = filled_pool(config, stream)
    adapter = draw_adapter(config, random.Random(3), 1)
    copy, left = stream.copy, [3]

    def failing(target: torch.Tensor, source: torch.Tensor) -> None:
        left[0] -= 1
        if not left[0]:
            raise RuntimeError("out of pinned memory")
        copy(target, source)

    monkeypatch.setattr(stream, "copy", failing)
    with pytest.raises(RuntimeError, match="pinned"):
        held.acquire(adapter)
    assert (pool.num_used, held.num_active, held.num_resident, stream.queue) == (0, 0, 0, [])
    held.acquire(adapter)
    batch = PagedAdapterBatch(config, tier)
    index = batch.select([adapter])[0]
    check(tier.memory, batch, config, adapter, index)


@pytest.mark.costly("many loads of adapters")
def test_a_closed_engine_holds_no_pool_and_has_no_copy_under_way(
    tiny_model: Path, adapters: dict[str, Adapter], paged_engine: EngineFactory
) -> None:
    """Another one is started in the same memory while this one's figures may still be read."""
    engine = paged_engine(tiny_model, max_num_seqs=1)
    stream = delay(engine)
    engine.add_request(request("first", PROMPT, 8), adapters["all"])
    engine.step()
    engine.add_request(request("second", PROMPT, 8), adapters["plain"])
    engine.step()
    assert stream.queue
    held = StorageWeakRef(tier_of(engine).memory.untyped_storage())  # type: ignore[no-untyped-call]
    engine.close()
    assert not stream.queue
    gc.collect()
    assert held.expired()  # type: ignore[no-untyped-call]
    assert engine.fits(100, adapters["rslora"])
    assert tier_of(engine).load_seconds.count >= 0
