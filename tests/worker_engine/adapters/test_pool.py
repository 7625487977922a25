"""Adapters in memory: dropped when unused, waited for when not, shared by content."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
import torch

from contracts.adapters.reference import AdapterMix, AdapterRef
from tests.waiting import eventually_async
from tests.worker_engine.tiny_adapter import adapter_ref
from worker_engine.adapters.adapter import Adapter
from worker_engine.adapters.loader import AdapterLoader
from worker_engine.adapters.pool import MAX_LOADS, AdapterPool
from worker_engine.errors import AdapterRefused, AdapterUnavailable


class CountingLoader(AdapterLoader):
    """The loader itself, and how often it was asked."""

    loads = 0

    def load(self, ref: AdapterRef | AdapterMix) -> Adapter:
        self.loads += 1
        return super().load(ref)


@pytest.fixture
def loader(tiny_model: Path, tmp_path: Path) -> CountingLoader:
    return CountingLoader(
        tiny_model, tmp_path / "cache", max_bytes=1 << 30, dtype=torch.float32, device=torch.device("cpu")
    )


def sizes(loader: CountingLoader, refs: list[AdapterRef]) -> list[int]:
    measured = [loader.load(ref).nbytes for ref in refs]
    loader.loads = 0
    return measured


async def hold(pool: AdapterPool, ref: AdapterRef) -> None:
    async with pool.acquire(ref):
        await asyncio.sleep(0)


def test_an_adapter_lies_in_one_piece_layer_by_layer(
    loader: CountingLoader, tiny_adapters: dict[str, Path]
) -> None:
    """The loops read it there: loose matrices cost a step of many adapters 3% (ADR 65)."""
    adapter = loader.load(adapter_ref(tiny_adapters["all"]))
    assert adapter.buffer is not None
    place = adapter.buffer.data_ptr()
    for layer in adapter.layers:
        for pair in layer.values():
            for matrix in (pair.a, pair.b):
                assert (matrix.data_ptr(), matrix.is_contiguous()) == (place, True)
                place += matrix.nbytes
    assert place == adapter.buffer.data_ptr() + adapter.buffer.nbytes


def test_the_longest_unused_adapter_leaves(loader: CountingLoader, tiny_adapters: dict[str, Path]) -> None:
    refs = [adapter_ref(folder) for folder in tiny_adapters.values()][:3]
    nbytes = sizes(loader, refs)

    async def run() -> None:
        pool = AdapterPool(loader, max_bytes=sum(nbytes) - 1)
        for ref in (refs[0], refs[1], refs[0], refs[2]):
            await hold(pool, ref)
        assert loader.loads == 3
        await hold(pool, refs[0])
        assert loader.loads == 3, "the adapter used last was dropped"
        await hold(pool, refs[1])
        assert loader.loads == 4
        assert pool.nbytes <= sum(nbytes) - 1

    asyncio.run(run())


def test_an_adapter_in_use_stays_and_a_newcomer_waits(
    loader: CountingLoader, tiny_adapters: dict[str, Path]
) -> None:
    refs = [adapter_ref(tiny_adapters[name]) for name in ("all", "rslora")]
    nbytes = sizes(loader, refs)

    async def run() -> None:
        pool = AdapterPool(loader, max_bytes=max(nbytes))
        async with pool.acquire(refs[0]):
            newcomer = asyncio.create_task(hold(pool, refs[1]))
            await eventually_async(lambda: loader.loads == 2)
            # A load that found room would be admitted within this time: nothing else tells that it waits.
            await asyncio.sleep(0.05)
            assert not newcomer.done()
            assert pool.nbytes == nbytes[0]
            await hold(pool, refs[0])
        await asyncio.wait_for(newcomer, 5)
        assert (pool.num_resident, pool.nbytes) == (1, nbytes[1])

    asyncio.run(run())


def test_one_larger_than_the_pool_is_refused(loader: CountingLoader, tiny_adapters: dict[str, Path]) -> None:
    async def run() -> None:
        pool = AdapterPool(loader, max_bytes=100)
        with pytest.raises(AdapterRefused, match="adapter-cache-gib"):
            await hold(pool, adapter_ref(tiny_adapters["plain"]))

    asyncio.run(run())


def test_same_content_under_two_names_is_one_adapter(
    loader: CountingLoader, tiny_adapters: dict[str, Path]
) -> None:
    one = adapter_ref(tiny_adapters["plain"], name="one")
    two = adapter_ref(tiny_adapters["plain"], name="two")

    async def run() -> None:
        pool = AdapterPool(loader, max_bytes=1 << 30)
        async with pool.acquire(one) as first, pool.acquire(two) as second:
            assert first is second
        await asyncio.gather(*[hold(pool, ref) for ref in (one, two) * 4])
        assert (loader.loads, pool.num_resident) == (1, 1)

    asyncio.run(run())


def test_anothers_dangling_uri_does_not_refuse_the_same_content(
    loader: CountingLoader, tiny_adapters: dict[str, Path], tmp_path: Path
) -> None:
    good = adapter_ref(tiny_adapters["plain"])
    bad = AdapterRef(good.name, (tmp_path / "nowhere").as_uri() + "/", good.sha256, good.rank)

    async def run() -> None:
        pool = AdapterPool(loader, max_bytes=1 << 30)
        results = await asyncio.gather(hold(pool, bad), hold(pool, good), return_exceptions=True)
        assert results[1] is None
        assert isinstance(results[0], AdapterUnavailable) or results[0] is None

    asyncio.run(run())


def test_waiting_newcomers_hold_little_memory(loader: CountingLoader, tiny_adapters: dict[str, Path]) -> None:
    """While the pool is full, loaded adapters do not pile up outside it; when it empties, all get a turn."""
    refs = [
        AdapterRef(ref.name, ref.uri, ref.sha256, 64 + extra)
        for ref in (adapter_ref(tiny_adapters[name]) for name in ("plain", "narrow", "patterns", "rslora"))
        for extra in range(2)
    ]
    first = adapter_ref(tiny_adapters["all"])
    limit = max(sizes(loader, [first, *refs]))
    assert len(refs) > MAX_LOADS

    async def run() -> None:
        pool = AdapterPool(loader, max_bytes=max(limit, sizes(loader, [first])[0]))
        filler = adapter_ref(tiny_adapters["rslora"])
        async with pool.acquire(filler):
            pool.max_bytes = pool.nbytes
            waiting = [asyncio.create_task(hold(pool, ref)) for ref in refs if ref.sha256 != filler.sha256]
            await eventually_async(lambda: loader.loads > MAX_LOADS)
            # Loads beyond the limit would begin within this time: nothing else tells that none does.
            await asyncio.sleep(0.1)
            assert loader.loads - 1 == MAX_LOADS
        await asyncio.wait_for(asyncio.gather(*waiting), 10)

    asyncio.run(run())


def test_a_file_replaced_after_loading_changes_nothing(
    loader: CountingLoader, tiny_adapters: dict[str, Path], tmp_path: Path
) -> None:
    """Identity is content: the old reference still means the old weights, the new files are a new one."""
    folder = shutil.copytree(tiny_adapters["plain"], tmp_path / "adapter")
    old = adapter_ref(folder)
    before = loader.load(old)
    shutil.copytree(tiny_adapters["all"], folder, dirs_exist_ok=True)
    again = loader.load(old)
    assert again.layers[0].keys() == before.layers[0].keys()
    assert all(torch.equal(again.layers[0][name].b, pair.b) for name, pair in before.layers[0].items())
    new = adapter_ref(folder)
    assert loader.load(new).layers[0].keys() > before.layers[0].keys()


def test_the_cache_outlives_the_worker_and_is_not_trusted(
    loader: CountingLoader, tiny_model: Path, tiny_adapters: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_adapters["plain"], tmp_path / "adapter")
    ref = adapter_ref(folder)
    loader.load(ref)
    moved = folder.rename(tmp_path / "away")
    loader.load(ref)
    cached = tmp_path / "cache" / ref.sha256 / "adapter_model.safetensors"
    cached.write_bytes(cached.read_bytes()[:-1] + b"\x01")
    with pytest.raises(AdapterUnavailable):
        loader.load(ref)
    moved.rename(folder)
    loader.load(ref)
    assert cached.read_bytes() == (folder / "adapter_model.safetensors").read_bytes()
