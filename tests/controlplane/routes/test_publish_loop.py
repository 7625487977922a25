"""`manage.py publish_routes` as a process: Redis comes, goes and comes back; SIGTERM ends it at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from controlplane.tenants.models import Tenant
from controlplane.tenants.services import tenant_create
from gateway.wire import ROUTES_SNAPSHOT, RouteTable
from tests.controlplane.conftest import Start
from tests.controlplane.valkey import Valkey
from tests.waiting import eventually

pytestmark = pytest.mark.django_db(transaction=True)
END_S = 60.0
"""Guards against a process that never ends after SIGTERM."""


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[Valkey]:
    server = Valkey(tmp_path)
    yield server
    server.stop()


def snapshot(url: str) -> RouteTable:
    with redis.Redis.from_url(url) as client:
        text = client.get(ROUTES_SNAPSHOT)
    return RouteTable.from_snapshot(text) if isinstance(text, bytes) else RouteTable()


def test_the_loop_outlives_redis_and_ends_at_sigterm(
    tenant: Tenant, start: Start, valkey: Valkey, tmp_path: Path
) -> None:
    loop = start("manage.py", "publish_routes", redis=valkey.url)
    eventually(lambda: "publishing waits" in (tmp_path / "log").read_text())
    valkey.start()
    eventually(lambda: "acme" in snapshot(valkey.url).tenants)
    valkey.stop()
    tenant_create(slug="initech", name="Initech")  # published to the session's Redis, not to this one
    valkey.start()
    eventually(lambda: {"acme", "initech"} <= set(snapshot(valkey.url).tenants))
    loop.terminate()
    assert loop.wait(END_S) == 0
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_sigterm_ends_it_at_once_while_redis_is_away(start: Start, valkey: Valkey, tmp_path: Path) -> None:
    tenant_create(slug="acme", name="Acme")
    loop = start("manage.py", "publish_routes", redis=valkey.url)
    eventually(lambda: "publishing waits" in (tmp_path / "log").read_text())
    loop.terminate()
    assert loop.wait(END_S) == 0
