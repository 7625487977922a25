"""Route changes reach a subscribed reader, whatever happens to Redis."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from pytest_django import Settings

from contracts.errors import ContractError
from contracts.redis_names import ROUTES_DELTAS, ROUTES_SEEN, ROUTES_SNAPSHOT, ROUTES_VERSION
from contracts.route_table import RouteChange, RouteTable, TenantRoute
from controlplane.routes import publisher as publisher_module
from controlplane.routes.models import RouteCounter, RouteDelta, RouteEntryRow
from controlplane.routes.publisher import RoutePublisher
from controlplane.routes.selectors import route_table
from controlplane.routes.services import route_publish_now, route_remove, route_renumber, route_set
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import (
    api_key_create,
    api_key_revoke,
    tenant_create,
    tenant_resume,
    tenant_suspend,
)
from tests.conftest import free_port
from tests.waiting import eventually

pytestmark = pytest.mark.django_db(transaction=True)


class Reader:
    """Reads as a gateway does: the snapshot, then deltas; on a gap the snapshot again, never back."""

    def __init__(self, redis_url: str) -> None:
        self._redis = redis.Redis.from_url(redis_url)
        self._stopped = threading.Event()
        self._last = b"0"
        self.table = RouteTable()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self._fetch()
        while not self._stopped.is_set():
            reply: Any = self._redis.xread({ROUTES_DELTAS: self._last}, block=50)
            streams = reply.values() if isinstance(reply, dict) else [item[1] for item in reply or []]
            for found in streams:
                entries = (
                    [entry for group in found for entry in group] if isinstance(found[0], list) else found
                )
                for entry_id, fields in entries:
                    self._last = entry_id
                    try:
                        self.table = self.table.apply([RouteChange.from_json(fields[b"change"])])
                    except ContractError:
                        self._fetch()

    def _fetch(self) -> None:
        text = self._redis.get(ROUTES_SNAPSHOT)
        if isinstance(text, bytes):
            table = RouteTable.from_snapshot(text)
            if table.version > self.table.version:
                self.table = table

    def wait(self, condition: Callable[[RouteTable], bool]) -> None:
        """Return once the table meets `condition`."""
        eventually(lambda: condition(self.table), message=lambda: self.table)

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()
        self._redis.close()


@pytest.fixture
def reader(redis_url: str) -> Iterator[Reader]:
    reader = Reader(redis_url)
    yield reader
    reader.close()


def publish_loop_once(redis_url: str) -> None:
    with RoutePublisher(redis_url) as publisher:
        publisher.publish(renumber=route_renumber)


def test_a_key_is_in_force_and_revoked(reader: Reader) -> None:
    tenant = tenant_create(slug="acme", name="Acme")
    api_key, _ = api_key_create(tenant=tenant, name="app", scopes=["inference"])
    reader.wait(lambda table: api_key.pk in table.keys)
    assert reader.table.keys[api_key.pk].secret_sha256 == api_key.secret_sha256
    api_key_revoke(api_key=api_key)
    reader.wait(lambda table: api_key.pk not in table.keys)
    assert reader.table == route_table()


def test_a_tenant_is_suspended_and_resumed(reader: Reader) -> None:
    tenant = tenant_create(slug="acme", name="Acme")
    tenant_suspend(tenant=tenant, reason="an invoice is overdue")
    reader.wait(lambda table: "acme" in table.tenants and table.tenants["acme"].suspended)
    tenant_resume(tenant=tenant)
    reader.wait(lambda table: not table.tenants["acme"].suspended)
    assert reader.table == route_table()


def test_versions_are_consecutive_and_deltas_alone_carry_changes(reader: Reader, redis_url: str) -> None:
    for number in range(5):
        route_set(path=f"tenants/t{number}", entry=TenantRoute("T", "00"))
    route_remove(path="tenants/t0")
    reader.wait(lambda table: len(table.tenants) == 4)
    versions = list(RouteDelta.objects.order_by("version").values_list("version", flat=True))
    assert [b - a for a, b in itertools.pairwise(versions)][-4:] == [1, 1, 1, 1]
    assert reader.table == route_table()


def test_a_change_made_while_redis_is_down_is_delivered_by_the_loop(
    reader: Reader, settings: Settings, redis_url: str
) -> None:
    route_set(path="tenants/before", entry=TenantRoute("B", "00"))
    working = settings.GRAFTWORK
    settings.GRAFTWORK = dataclasses.replace(working, redis_url=f"redis://127.0.0.1:{free_port()}/0")
    tenant_create(slug="acme", name="Acme")
    assert Tenant.objects.filter(pk="acme").exists(), "the change must stand without Redis"
    settings.GRAFTWORK = working
    assert "acme" not in reader.table.tenants
    publish_loop_once(redis_url)
    reader.wait(lambda table: {"before", "acme"} <= set(table.tenants))


def test_an_emptied_redis_gets_the_whole_table_and_waiting_readers_hear_of_it(
    reader: Reader, redis_url: str
) -> None:
    route_set(path="tenants/one", entry=TenantRoute("1", "00"))
    reader.wait(lambda table: "one" in table.tenants)
    with redis.Redis.from_url(redis_url) as client:
        client.flushdb()
    # Lost on its way: committed, but the reader never hears of it except by the snapshot.
    RouteEntryRow.objects.create(path="tenants/two", entry={"name": "2", "cache_salt": "00", "bases": None})
    publish_loop_once(redis_url)
    reader.wait(lambda table: {"one", "two"} <= set(table.tenants))
    route_set(path="tenants/three", entry=TenantRoute("3", "00"))
    reader.wait(lambda table: "three" in table.tenants)
    assert reader.table == route_table()


def test_a_restored_database_does_not_send_readers_back(reader: Reader, redis_url: str) -> None:
    for number in range(4):
        route_set(path=f"tenants/t{number}", entry=TenantRoute("T", "00"))
    reader.wait(lambda table: len(table.tenants) == 4)
    held = reader.table.version
    RouteCounter.objects.update(version=held - 3)
    RouteDelta.objects.filter(version__gt=held - 3).delete()
    RouteEntryRow.objects.filter(path__in=["tenants/t2", "tenants/t3"]).delete()
    publish_loop_once(redis_url)
    reader.wait(lambda table: set(table.tenants) == {"t0", "t1"})
    assert reader.table.version > held


def test_redis_and_database_restored_together_are_numbered_above_what_gateways_hold(
    reader: Reader, redis_url: str
) -> None:
    """Neither Redis nor the database can tell this case: a gateway reports the version that it saw."""
    for number in range(4):
        route_set(path=f"tenants/t{number}", entry=TenantRoute("T", "00"))
    reader.wait(lambda table: len(table.tenants) == 4)
    held = reader.table.version
    RouteCounter.objects.update(version=held - 3)
    RouteDelta.objects.filter(version__gt=held - 3).delete()
    RouteEntryRow.objects.filter(path__in=["tenants/t2", "tenants/t3"]).delete()
    with redis.Redis.from_url(redis_url) as client:
        client.set(ROUTES_VERSION, held - 3)
        publish_loop_once(redis_url)
        assert client.get(ROUTES_VERSION) == str(held - 3).encode(), "nothing tells them apart from new ones"
        client.zadd(ROUTES_SEEN, {"version": held}, gt=True)
        publish_loop_once(redis_url)
        reader.wait(lambda table: set(table.tenants) == {"t0", "t1"})
        numbered = reader.table.version
        assert numbered > held
        # The publisher has caught up: it publishes the change once.
        publish_loop_once(redis_url)
        assert client.get(ROUTES_VERSION) == str(numbered).encode()


def test_a_lost_stream_makes_the_snapshot_stale(redis_url: str) -> None:
    for number in range(3):
        route_set(path=f"tenants/t{number}", entry=TenantRoute("T", "00"))
    with RoutePublisher(redis_url) as publisher, redis.Redis.from_url(redis_url) as client:
        publisher.publish_snapshot()
        route_set(path="tenants/late", entry=TenantRoute("T", "00"))
        assert not publisher.snapshot_is_stale()
        client.delete(ROUTES_DELTAS)
        assert publisher.snapshot_is_stale(), "who holds an older version has no way to the newest"
        publisher.publish_snapshot()
        assert not publisher.snapshot_is_stale()


def test_pruned_changes_are_replaced_by_a_snapshot(reader: Reader, redis_url: str) -> None:
    route_set(path="tenants/one", entry=TenantRoute("1", "00"))
    reader.wait(lambda table: "one" in table.tenants)
    counter = RouteCounter.objects.get()
    counter.version += 1
    counter.save()
    RouteEntryRow.objects.create(path="tenants/two", entry={"name": "2", "cache_salt": "00", "bases": None})
    publish_loop_once(redis_url)
    reader.wait(lambda table: "two" in table.tenants)


def test_a_stale_snapshot_is_rewritten_and_an_older_one_never_replaces_it(redis_url: str) -> None:
    for number in range(6):
        route_set(path=f"tenants/t{number}", entry=TenantRoute("T", "00"))
    with RoutePublisher(redis_url) as publisher, redis.Redis.from_url(redis_url) as client:
        assert publisher.snapshot_is_stale(lag=5)
        publisher.publish_snapshot()
        assert not publisher.snapshot_is_stale(lag=5)
        newest = RouteTable.from_snapshot(client.get(ROUTES_SNAPSHOT))
        assert newest == route_table()
        RouteCounter.objects.update(version=newest.version - 2)
        assert publisher.publish_snapshot() == 0
        assert RouteTable.from_snapshot(client.get(ROUTES_SNAPSHOT)) == newest


def test_publishers_at_once_deliver_each_change_once(redis_url: str) -> None:
    route_set(path="tenants/first", entry=TenantRoute("T", "00"))
    with redis.Redis.from_url(redis_url) as client:
        before = int(client.xlen(ROUTES_DELTAS))
        version = RouteCounter.objects.get().version
        for number in range(1, 41):
            entry = {"name": "T", "cache_salt": "00", "bases": None}
            RouteEntryRow.objects.create(path=f"tenants/t{number}", entry=entry)
            RouteDelta.objects.create(version=version + number, path=f"tenants/t{number}", entry=entry)
        RouteCounter.objects.update(version=version + 40)
        threads = [threading.Thread(target=_publish_and_close) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert int(client.xlen(ROUTES_DELTAS)) == before + 40
        assert int(client.get(ROUTES_VERSION)) == version + 40


def _publish_and_close() -> None:
    from django.db import connection

    route_publish_now()
    connection.close()


def test_a_snapshot_stays_for_good_and_is_the_only_one(tenant: Tenant, redis_url: str) -> None:
    """It is written under a temporary name with a TTL and then renamed; an older one leaves nothing."""
    with RoutePublisher(redis_url) as publisher, redis.Redis.from_url(redis_url) as client:
        publisher.publish_snapshot()
        publisher.publish_snapshot()
        client.set(f"{ROUTES_SNAPSHOT}:version", 1 << 60)  # a newer one is there
        assert publisher.publish_snapshot() == 0
        assert client.ttl(ROUTES_SNAPSHOT) == -1
        names = {name.decode() for name in client.scan_iter(f"{ROUTES_SNAPSHOT}*")}
        assert names == {ROUTES_SNAPSHOT, f"{ROUTES_SNAPSHOT}:version"}
        assert "acme" in RouteTable.from_snapshot(client.get(ROUTES_SNAPSHOT) or b"").tenants


def test_a_snapshot_is_sent_by_pieces_and_half_a_one_is_never_put_in_place(
    tenant: Tenant, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_module, "_PIECE", 7)
    with RoutePublisher(redis_url) as publisher, redis.Redis.from_url(redis_url) as client:
        client.config_resetstat()
        assert publisher.publish_snapshot() == 1
        whole = client.get(ROUTES_SNAPSHOT) or b""
        assert RouteTable.from_snapshot(whole) == route_table()
        pieces = client.info("commandstats")["cmdstat_append"]["calls"]
        assert pieces == -(-len(whole) // 7)

        append, sent = publisher._redis.append, []

        def expire_midway(name: str, value: bytes) -> None:
            sent.append(name)
            if len(sent) == 3:
                client.unlink(name)
            append(name, value)

        monkeypatch.setattr(publisher._redis, "append", expire_midway)
        assert publisher.publish_snapshot() == 0
        assert client.get(ROUTES_SNAPSHOT) == whole
