"""`manage.py publish_routes` as a process: Redis comes, goes and comes back; SIGTERM ends it at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from contracts.redis_names import ROUTES_SNAPSHOT
from contracts.route_table import RouteTable
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import tenant_create
from tests.controlplane.conftest import Start
from tests.controlplane.valkey import Valkey
from tests.waiting import eventually

pytestmark = pytest.mark.django_db(transaction=True)
PROMPTLY = 20.0
"""Seconds from SIGTERM to the end: 1.5 with six busy processes a core, most of it the interpreter's exit;
5 were missed once."""


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[Valkey]:
    server = Valkey(tmp_path)
    yield server
    server.stop()


def snapshot(url: str) -> RouteTable:
    with redis.Redis.from_url(url) as client:
        text = client.get(ROUTES_SNAPSHOT)
    return RouteTable.from_snapshot(text) if isinstance(text, bytes) else RouteTable()


@pytest.mark.costly("starts the publisher and Valkey")
def test_the_loop_outlives_redis_and_ends_at_sigterm(
    tenant: Tenant, start: Start, valkey: Valkey, tmp_path: Path
) -> None:
    loop = start("manage.py", "publish_routes", redis=valkey.url)
    eventually(lambda: "publishing is delayed" in (tmp_path / "log").read_text())
    valkey.start()
    eventually(lambda: "acme" in snapshot(valkey.url).tenants)
    valkey.stop()
    tenant_create(slug="initech", name="Initech")  # published to the session's Redis, not to this one
    valkey.start()
    eventually(lambda: {"acme", "initech"} <= set(snapshot(valkey.url).tenants))
    loop.terminate()
    assert loop.wait(PROMPTLY) == 0
    assert "Traceback" not in (tmp_path / "log").read_text()


@pytest.mark.costly("starts the publisher and Valkey")
def test_sigterm_ends_it_at_once_while_redis_is_away(start: Start, valkey: Valkey, tmp_path: Path) -> None:
    tenant_create(slug="acme", name="Acme")
    loop = start("manage.py", "publish_routes", redis=valkey.url)
    eventually(lambda: "publishing is delayed" in (tmp_path / "log").read_text())
    time.sleep(0.5)  # It waits between two attempts by now: the case that must end at once.
    loop.terminate()
    assert loop.wait(PROMPTLY) == 0
