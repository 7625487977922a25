"""The control plane's benchmark fills the database with the rows and routes that the services would write."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.test import Client
from pytest_django import Settings

from controlplane.adapters.selectors import adapter_get, adapter_route
from controlplane.routes.models import RouteEntryRow
from controlplane.routes.selectors import route_table
from controlplane.tenants.models import ApiKey, Tenant
from tests.controlplane.conftest import graftwork as graftwork

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]


def test_bulk_rows_are_routed_like_any(graftwork: Path, settings: Settings) -> None:
    from benchmarks.controlplane_data import SECRET, build, name_of

    text = build(adapters=5, keys=3)
    tenant = Tenant.objects.get()
    table = route_table()
    assert len(table.keys) == ApiKey.objects.count() == 4
    adapters = table.adapters[tenant.pk]
    assert sorted(adapters) == [name_of(number) for number in range(5)]
    assert adapters[name_of(3)] == adapter_route(adapter=adapter_get(tenant=tenant, name=name_of(3)))
    client = Client(headers={"Authorization": f"Bearer {text}"})
    moved = client.put(
        f"/api/v1/adapters/{name_of(3)}/aliases/prod", {"version": 2}, content_type="application/json"
    )
    assert moved.status_code == 200
    assert route_table().adapters[tenant.pk][name_of(3)].aliases == {"prod": 2}
    assert RouteEntryRow.objects.filter(path__startswith="keys/").count() == 4
    assert SECRET
