"""A request that waits for its turn has its adapter brought through all tiers meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.worker_engine.test_service import Serve, count, long, serve, short
from tests.worker_engine.tiny_adapter import adapter_ref
from worker_engine import model_runner
from worker_engine.adapters.device_tier import DeviceTier
from worker_engine.service import Service

__all__ = ["serve"]


@pytest.mark.costly("many loads of adapters")
def test_from_the_store_to_the_device_while_it_queues(
    serve: Serve, tiny_adapters: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_runner, "adapters_in_pages", lambda device: True)

    async def scenario(service: Service) -> None:
        ref, tier = adapter_ref(tiny_adapters["all"]), service.engine.scheduler.adapters.tier
        assert isinstance(tier, DeviceTier)
        first = service.generate(long("first"))
        await anext(first)
        second = asyncio.create_task(count(service.generate(replace(short("second"), adapter=ref))))
        held = {"host": False, "device": False}
        async for _ in first:
            assert not second.done(), "it did not wait"
            held["host"] |= service.adapters.num_resident == 1
            held["device"] |= tier.get(ref.sha256) is not None
        assert held == {"host": True, "device": True}
        assert await second == 5
        assert tier.num_loads == 1

    serve(scenario, max_num_seqs=1)
