"""/healthz and /readyz report the real state."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from redis.asyncio import Redis

from contracts.redis_names import ROUTES_SNAPSHOT
from gateway.lifecycle.drain import Drain
from gateway.lifecycle.health import Health
from gateway.routing.route_feed import RouteFeed
from gateway.usage.wal import Wal
from gateway.usage.wal_slots import Slot
from tests.gateway.conftest import ControlPlane, GatewayProcess, route_table
from tests.waiting import eventually

pytestmark = pytest.mark.costly("starts gateways of its own")


def test_background_work_that_ended_needs_a_restart(
    tmp_path: Path, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        slot = Slot.hold(tmp_path / "000")
        assert slot is not None
        redis = Redis.from_url(redis_url)
        wal = Wal(slot)
        health = Health(wal, RouteFeed(redis), Drain())

        async def fall_over() -> None:
            raise RuntimeError("unforeseen")

        assert health.alive()[0] == 200
        # It is cancelled before it ends.
        health.start("limits", asyncio.sleep(3600))
        health.start("meter", fall_over())
        for _ in range(5):
            await asyncio.sleep(0)
        status, body = health.alive()
        assert status == 503
        assert body == {"status": "broken", "reasons": ["The meter has ended; restart the gateway."]}
        assert health.ready()[0] == 503
        for task in health.tasks:
            task.cancel()
        await asyncio.wait(health.tasks)
        assert health.alive()[1] == body, "what was told to end is no fault"
        wal.close()
        assert "usage log's thread" in str(health.alive()[1])
        await redis.aclose()

    asyncio.run(work())
    assert "background task meter failed" in caplog.text


def test_alive_without_routes_but_not_ready(
    own_gateway: GatewayProcess, control_plane: ControlPlane, upstream: str
) -> None:
    own_gateway.start(ready=False)
    assert control_plane.client.get(ROUTES_SNAPSHOT) is None
    answer = httpx.get(own_gateway.url + "/readyz")
    assert answer.status_code == 503
    assert "No route table yet" in answer.json()["reasons"][0]
    assert httpx.get(own_gateway.url + "/healthz").json() == {"status": "ok"}
    control_plane.publish(route_table(upstream))
    eventually(lambda: httpx.get(own_gateway.url + "/readyz").status_code == 200)
    assert httpx.head(own_gateway.url + "/readyz").status_code == 200
