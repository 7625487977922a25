"""Every page and fragment takes as many queries with 1,000 adapters as with 10."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from controlplane.catalog.models import BaseModel
from controlplane.tenants.models import ApiKey, Tenant
from controlplane.tenants.roles import Role
from tests.conftest import ROOT
from tests.controlplane.conftest import graftwork as graftwork
from tests.controlplane.world import OWN, World
from tests.ui.filled import world_fill
from tests.ui.pages import (
    ACCOUNT_PAGES,
    OPEN_PAGES,
    STAFF_PAGES,
    TENANT_PAGES,
    Opening,
    opening,
    staff_path,
    tenant_path,
)

pytestmark = [pytest.mark.django_db, pytest.mark.timeout(900)]
WHOLE = (*TENANT_PAGES, *STAFF_PAGES, *ACCOUNT_PAGES, *OPEN_PAGES)
FEW, MANY = 10, 1_000
MOST = 50
"""Queries of any page. Each is a round trip: at 2 ms they take a hundred of the 150 ms that a page has."""
PARTS = re.compile(r"""hx-get="{% url 'console:([\w-]+)'""")
"""What pages ask for again while somebody looks."""


def parts() -> set[str]:
    templates = (path.read_text() for path in (ROOT / "templates").rglob("*.html"))
    return {name for text in templates for name in PARTS.findall(text)}


def opened(world: World, name: str) -> Opening:
    """The page, or the part of one."""
    if name in WHOLE:
        return opening(world, name)
    if name.startswith("staff-"):
        return Opening(world.staff, staff_path(world, name))
    return Opening(world.people[OWN, Role.OWNER], tenant_path(world, name))


def queries_of(world: World, names: Iterable[str]) -> dict[str, list[str]]:
    """Return the statements of each page's second visit; the first fills caches."""
    made = {}
    for name in names:
        page = opened(world, name)
        client = page.client or Client()
        client.get(page.path)
        with CaptureQueriesContext(connection) as queries:
            assert client.get(page.path).status_code in (page.status, 204, 401), name
        made[name] = [query["sql"] for query in queries.captured_queries]
    return made


def page_statements(count: int, world: World) -> dict[str, list[str]]:
    """Return the SQL statements of each page with `count` adapters and related rows; roll the rows back."""
    from benchmarks.controlplane_data import adapters_add, keys_add
    from benchmarks.pages.fill import Counts, around

    tenant, base = Tenant.objects.get(pk=OWN), BaseModel.objects.get(name="tiny-base")
    with transaction.atomic():
        adapters_add(tenant, base, count)
        keys_add(tenant, ApiKey.objects.filter(tenant=tenant)[0], count)
        around(tenant=tenant, base=base, count=Counts(count))
        made = queries_of(world, sorted({*WHOLE, *parts()}))
        transaction.set_rollback(True)
    return made


@pytest.mark.costly("renders every page")
def test_no_page_asks_more_often_for_more_rows(graftwork: Path, settings: Settings, tmp_path: Path) -> None:
    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, sign_up="open")
    world = world_fill(tmp_path)
    few, many = page_statements(FEW, world), page_statements(MANY, world)
    more = {name: (len(few[name]), len(many[name])) for name in few if len(many[name]) > len(few[name])}
    assert more == {}
    assert {name: len(made) for name, made in many.items() if len(made) > MOST} == {}
