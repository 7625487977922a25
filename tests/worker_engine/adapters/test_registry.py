"""Adapters by name, without HTTP: pins that are shared, names in progress, content that leaves its source."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
import torch

from tests.worker_engine.tiny_adapter import adapter_ref
from worker_engine.adapters.loader import AdapterLoader
from worker_engine.adapters.pool import AdapterPool
from worker_engine.adapters.registry import AdapterRegistry
from worker_engine.errors import AdapterNotFound, AdapterRefused, InvalidRequest


@pytest.fixture
def root(tiny_adapters: dict[str, Path], tmp_path: Path) -> Path:
    for name in ("plain", "all", "patterns"):
        shutil.copytree(tiny_adapters[name], tmp_path / "root" / name)
    return tmp_path / "root"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def loader(tiny_model: Path, cache: Path) -> AdapterLoader:
    return AdapterLoader(
        tiny_model, cache, max_bytes=1 << 30, dtype=torch.float32, device=torch.device("cpu")
    )


@pytest.fixture
def pool(loader: AdapterLoader) -> AdapterPool:
    return AdapterPool(loader, max_bytes=1 << 30)


@pytest.fixture
def registry(loader: AdapterLoader, pool: AdapterPool, root: Path) -> AdapterRegistry:
    return AdapterRegistry(loader, pool, root=root, base="base")


def test_a_name_has_the_digest_and_rank_of_its_files(registry: AdapterRegistry, root: Path) -> None:
    found = asyncio.run(registry.register("a", "patterns", preload=False))
    assert found.ref.sha256 == adapter_ref(root / "patterns").sha256
    assert found.ref.rank == 8
    assert (found.ref.name, found.src, len(registry)) == ("a", "patterns", 1)


def test_content_stays_pinned_while_any_name_pins_it(registry: AdapterRegistry, pool: AdapterPool) -> None:
    async def run() -> None:
        await registry.register("one", "plain", pin=True)
        await registry.register("two", "plain", pin=True)
        held = pool.pinned_bytes
        registry.unregister("one", param="name")
        assert pool.pinned_bytes == held > 0
        await registry.register("two", "all", replace=True)
        assert pool.pinned_bytes == 0

    asyncio.run(run())


def test_a_refused_replacement_leaves_the_old_content(registry: AdapterRegistry, root: Path) -> None:
    async def run() -> None:
        old = await registry.register("a", "plain", pin=True)
        weights = root / "all" / "adapter_model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-8])
        with pytest.raises(AdapterRefused):
            await registry.register("a", "all", replace=True)
        assert registry.get("a", param="name") == old

    asyncio.run(run())


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ("adapter_model.bin", "graftwork convert"),
        ("adapter_model.safetensors.index.json", "saved in shards"),
        ("adapters.safetensors", "saved by mlx-lm"),
        ("optimizer.pt", "must be a folder with adapter_config.json and adapter_model.safetensors"),
    ],
)
def test_other_weights_are_refused_with_what_to_do(
    registry: AdapterRegistry, root: Path, other: str, reason: str
) -> None:
    (root / "plain" / other).write_bytes(b"x")
    asyncio.run(registry.register("beside", "plain"))
    (root / "plain" / "adapter_model.safetensors").unlink()
    with pytest.raises(InvalidRequest, match=reason):
        asyncio.run(registry.register("alone", "plain"))


def test_one_name_is_registered_by_one_request_at_a_time(registry: AdapterRegistry) -> None:
    async def run() -> None:
        results = await asyncio.gather(
            registry.register("a", "plain"), registry.register("a", "all"), return_exceptions=True
        )
        assert [type(result) for result in results].count(InvalidRequest) == 1
        assert len(registry) == 1
        registry.unregister("a", param="name")
        await registry.register("a", "all")

    asyncio.run(run())


def test_files_that_changed_are_never_served_under_the_old_digest(
    registry: AdapterRegistry, pool: AdapterPool, root: Path, cache: Path
) -> None:
    """Even when neither memory nor disk holds the old content any more."""

    async def run() -> None:
        found = await registry.register("a", "plain", preload=False)
        shutil.rmtree(cache)
        shutil.rmtree(root / "plain")
        shutil.copytree(root / "all", root / "plain")
        with pytest.raises(AdapterRefused, match="digest"):
            async with pool.acquire(found.ref):
                pass
        again = await registry.register("a", "plain", replace=True)
        assert again.ref.sha256 != found.ref.sha256

    asyncio.run(run())


def test_without_a_folder_no_local_source_is_taken(
    loader: AdapterLoader, pool: AdapterPool, root: Path
) -> None:
    registry = AdapterRegistry(loader, pool, root=None, base="base")
    with pytest.raises(InvalidRequest, match="--adapters-dir"):
        asyncio.run(registry.register("a", str(root / "plain")))
    with pytest.raises(AdapterNotFound):
        registry.get("a", param="model")
