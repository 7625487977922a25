"""Every page asks the database as often with 1,000 adapters, keys, members and the like as with a few."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from controlplane.catalog.models import BaseModel
from controlplane.tenants.models import ApiKey, Tenant
from tests.controlplane.conftest import graftwork as graftwork
from tests.controlplane.world import OWN, World
from tests.ui.filled import world_fill
from tests.ui.pages import STAFF_PAGES, TENANT_PAGES, opening

pytestmark = pytest.mark.django_db
FEW, MANY = 10, 1_000
MOST = 50
"""Queries of any page. Each is a round trip: at 2 ms they take a hundred of the 150 ms that a page has."""


def queries_of(world: World, names: Iterable[str]) -> dict[str, list[str]]:
    """The statements of each page, as its second visitor causes them: the first reads what is kept."""
    made = {}
    for name in names:
        page = opening(world, name)
        assert page.client is not None
        page.client.get(page.path)
        with CaptureQueriesContext(connection) as queries:
            assert page.client.get(page.path).status_code == 200, name
        made[name] = [query["sql"] for query in queries.captured_queries]
    return made


def at(count: int, world: World) -> dict[str, list[str]]:
    """The statements of each page with so many adapters and what goes with them, which are taken back."""
    from benchmarks.controlplane_data import adapters_add, keys_add
    from benchmarks.pages.fill import Counts, around

    tenant, base = Tenant.objects.get(pk=OWN), BaseModel.objects.get(name="tiny-base")
    with transaction.atomic():
        adapters_add(tenant, base, count)
        keys_add(tenant, ApiKey.objects.filter(tenant=tenant)[0], count)
        around(tenant=tenant, base=base, count=Counts(count))
        made = queries_of(world, (*TENANT_PAGES, *STAFF_PAGES))
        transaction.set_rollback(True)
    return made


def test_no_page_asks_more_often_for_more_rows(graftwork: Path, settings: Settings, tmp_path: Path) -> None:
    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, sign_up="open")
    world = world_fill(tmp_path)
    few, many = at(FEW, world), at(MANY, world)
    more = {name: (len(few[name]), len(many[name])) for name in few if len(many[name]) > len(few[name])}
    assert more == {}
    assert {name: len(made) for name, made in many.items() if len(made) > MOST} == {}
