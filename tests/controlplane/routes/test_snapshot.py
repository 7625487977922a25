"""The snapshot: one state of all rows, which no change waits for."""

from __future__ import annotations

import json
import threading

import pytest
from django.db import connection, transaction

from contracts.route_table import RouteTable, TenantRoute, entry_from_json
from controlplane.routes.models import RouteEntryRow
from controlplane.routes.selectors import route_snapshot, route_table, route_version
from controlplane.routes.services import route_set
from controlplane.tenants.models import Tenant

pytestmark = pytest.mark.django_db(transaction=True)


def test_it_is_what_a_reader_takes_for_the_table(tenant: Tenant) -> None:
    route_set(path='tenants/odd-"\\\n', entry=TenantRoute('of "quotes"\n', "00", ("a",)))
    version, text = route_snapshot()
    table = RouteTable.from_snapshot(text)
    assert (table, table.version) == (route_table(), version)
    rows = {row.path: row.entry for row in RouteEntryRow.objects.all()}
    assert len(rows) > 1
    parsed = dict(entry_from_json(json.dumps({"path": path, "entry": entry})) for path, entry in rows.items())
    assert dict(table.entries()) == parsed


@pytest.mark.parametrize("paced", [False, True])
def test_it_is_read_in_pieces_and_is_of_one_state(
    paced: bool, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change during a snapshot is in the next one."""
    if connection.vendor != "postgresql":
        pytest.skip("on SQLite a reader keeps no writer waiting, nor itself its state between statements")
    rows = (RouteEntryRow(path=f"tenants/t{number:05}", entry={"kind": "tenant"}) for number in range(3_000))
    RouteEntryRow.objects.bulk_create(rows)
    monkeypatch.setattr("controlplane.routes.selectors._PIECE", 500)
    before, rests = route_version(), list[float]()

    def pause(seconds: float) -> None:
        if not rests:
            changing = threading.Thread(target=_change)
            changing.start()
            changing.join(20)
        rests.append(seconds)

    monkeypatch.setattr("controlplane.routes.selectors.time.sleep", pause)
    version, text = route_snapshot(paced=paced)
    assert version == before
    assert text.count("\n") > 3_000
    assert "tenants/late" not in text
    assert len(rests) == (6 if paced else 0)
    if paced:
        assert "tenants/late" in route_snapshot()[1]


def _change() -> None:
    try:
        route_set(path="tenants/late", entry=TenantRoute("Late", "00"))
    finally:
        connection.close()


def test_it_does_not_wait_for_a_change_nor_a_change_for_it(tenant: Tenant) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one writer, and readers that begin a transaction are one")
    changed, done = threading.Event(), threading.Event()

    def change() -> None:
        try:
            with transaction.atomic():
                route_set(path="tenants/slow", entry=TenantRoute("Slow", "00"))
                changed.set()
                done.wait(20)
        finally:
            connection.close()

    thread = threading.Thread(target=change)
    thread.start()
    try:
        assert changed.wait(20)
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '2s'")
        assert "slow" not in RouteTable.from_snapshot(route_snapshot()[1]).tenants
    finally:
        done.set()
        thread.join()
    assert "slow" in route_table().tenants
