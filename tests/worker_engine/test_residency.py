"""Adapters placed by reference: loaded ahead, pinned in a full memory, released with their last request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.adapters.reference import AdapterRef
from tests.worker_engine.sagemaker.conftest import Container
from tests.worker_engine.tiny_adapter import adapter_ref
from tests.worker_process import run_worker
from worker_engine.adapters.loader import AdapterLoader
from worker_engine.adapters.pool import BY_PLACEMENT, AdapterPool
from worker_engine.errors import AdapterRefused


@pytest.fixture(scope="module")
def worker(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    """Calls to a worker without an adapters folder."""
    folder = tmp_path_factory.mktemp("worker")
    with run_worker(tiny_model, folder, "--memory-gib", "0.01") as process:
        yield Container(process, folder)


def listed(worker: Container) -> dict[str, Any]:
    status, _, told = worker.call("GET", "/resident")
    assert status == 200
    return {item["sha256"]: item for item in told["adapters"]}


def test_by_http(worker: Container, tiny_adapters: dict[str, Path]) -> None:
    ref = adapter_ref(tiny_adapters["plain"])
    one = f"/resident/{ref.sha256}"
    assert worker.call("GET", "/resident", token="wrong")[0] == 401
    assert worker.call("POST", "/resident", {"adapter": ref.to_dict()})[2] == {"sha256": ref.sha256}
    held = listed(worker)[ref.sha256]
    assert (held["pinned"], held["tier"], held["requests"]) == (["placement"], "host", 0)
    told = worker.call("GET", "/resident")[2]
    assert told["pinned_bytes"] == held["bytes"] == told["bytes"] < told["max_bytes"]
    worker.call(
        "POST",
        "/v1/completions",
        {"model": ref.name, "prompt": "hello", "max_tokens": 2, "adapter": ref.to_dict()},
    )
    assert listed(worker)[ref.sha256]["tier"] == "device", "its pages stay until others need them"
    assert worker.call("POST", f"{one}/unpin")[2] == {"pinned": True}
    assert worker.call("POST", f"{one}/unpin")[2] == {"pinned": False}
    assert listed(worker)[ref.sha256]["pinned"] == []
    assert worker.call("DELETE", one)[2] == {"gone": True}
    assert listed(worker) == {}
    assert worker.call("GET", "/resident/disk")[2] == {"sha256": [ref.sha256]}, "its files stay"
    assert worker.call("GET", "/resident/disk", token="wrong")[0] == 401
    assert worker.call("DELETE", one)[2] == {"gone": True}, "what is gone may go again"
    assert worker.call("POST", "/resident", {"adapter": ref.to_dict(), "pin": False})[0] == 200
    assert listed(worker)[ref.sha256]["pinned"] == []
    assert worker.call("DELETE", one)[2] == {"gone": True}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "adapter"),
        ({"adapter": {"name": "x"}}, "adapter"),
        ({"adapter": []}, "adapter"),
        ({"adapter": {}, "pin": "yes"}, "adapter"),
        ({"adapter": {}, "keep": True}, "keep"),
    ],
)
def test_what_is_malformed_is_named(worker: Container, body: dict[str, Any], param: str) -> None:
    status, _, answer = worker.call("POST", "/resident", body)
    assert (status, answer["error"]["param"]) == (400, param)
    status, _, answer = worker.call("DELETE", "/resident/abc")
    assert (status, answer["error"]["param"]) == (400, "sha256")


@pytest.fixture
def loader(tiny_model: Path, tmp_path: Path) -> AdapterLoader:
    return AdapterLoader(
        tiny_model, tmp_path / "cache", max_bytes=1 << 30, dtype=torch.float32, device=torch.device("cpu")
    )


async def used(pool: AdapterPool, ref: AdapterRef) -> None:
    async with pool.acquire(ref):
        pass


def test_one_in_use_leaves_with_its_last_request(
    loader: AdapterLoader, tiny_adapters: dict[str, Path]
) -> None:
    ref = adapter_ref(tiny_adapters["plain"])

    async def run() -> None:
        pool = AdapterPool(loader, max_bytes=1 << 30)
        async with pool.acquire(ref):
            assert pool.evict(ref.sha256) is False
            await used(pool, ref)
            assert pool.num_resident == 1, "another that came and went is not the last"
        assert pool.num_resident == 0
        async with pool.acquire(ref):
            pool.evict(ref.sha256)
            await pool.pin(ref, by=BY_PLACEMENT)
        assert pool.num_resident == 1, "pinned anew meanwhile, it stays"
        with pytest.raises(AdapterRefused, match="unpin it first"):
            pool.evict(ref.sha256)

    asyncio.run(run())


def test_two_who_pin_do_not_unpin_each_other(loader: AdapterLoader, tiny_adapters: dict[str, Path]) -> None:
    refs = [adapter_ref(folder) for folder in tiny_adapters.values()][:3]

    async def run() -> None:
        nbytes = [loader.load(ref).nbytes for ref in refs]
        pool = AdapterPool(loader, max_bytes=max(sum(nbytes) - 1, 2 * nbytes[0]))
        await pool.pin(refs[0])
        await pool.pin(refs[0], by=BY_PLACEMENT)
        assert pool.residencies()[0].pinned == {"name", "placement"}
        assert pool.unpin(refs[0].sha256, by=BY_PLACEMENT)
        for _ in range(2):
            for ref in refs[1:]:
                await used(pool, ref)
        assert pool.unpin(refs[0].sha256), "the name's pin was still there"
        assert refs[0].sha256 in {item.sha256 for item in pool.residencies()}, "and kept it"
        for ref in refs[1:]:
            await used(pool, ref)
        assert refs[0].sha256 not in {item.sha256 for item in pool.residencies()}

    asyncio.run(run())
