"""A page of many rows takes as many queries as a page of one row, for every list of the API."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from pytest_django.plugin import DjangoDbBlocker
from rest_framework import generics

from controlplane import api_urls
from controlplane.adapters.models import Adapter, AdapterVersion, Alias, AliasArm
from controlplane.adapters.services import adapter_publish
from controlplane.billing.services import price_book_create, price_set
from controlplane.catalog.models import BaseModel
from controlplane.deployments.copies.services import copy_register
from controlplane.tenants.models import Membership, Tenant, User
from controlplane.tenants.roles import Role
from controlplane.tenants.services import api_key_create, tenant_create, user_create
from tests.controlplane.world import OWN, World, world_make

pytestmark = pytest.mark.django_db

LISTS: Final = sorted(
    str(pattern.name)
    for pattern in api_urls.urlpatterns
    if issubclass(getattr(pattern.callback, "cls"), generics.ListAPIView)  # noqa: B009  # set by as_view
)
FILLED: Final = {
    "adapters",
    "aliases",
    "base-models",
    "copies",
    "keys",
    "price-books",
    "tenants",
    "users",
    "versions",
}
"""Lists that this test fills; the others are compared with what there is."""


@pytest.fixture(scope="module")
def world(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    with django_db_blocker.unblock(), transaction.atomic():
        yield _filled(tmp_path_factory.mktemp("world"))
        transaction.set_rollback(True)


def _filled(folder: Path) -> World:
    made = world_make(folder)
    tenant, base = Tenant.objects.get(pk=OWN), BaseModel.objects.get()
    Membership.objects.create(user=User.objects.get(is_staff=True), tenant=tenant, role=Role.OWNER)
    for number in range(4):
        adapter = Adapter.objects.create(tenant=tenant, name=f"bot-{number}", base_model=base)
        _fill(adapter)
        api_key_create(tenant=tenant, name=f"k{number}", scopes=["inference"])
        tenant_create(slug=f"t{number}", name="T")
        user_create(email=f"u{number}@t.test", password="long-enough-7", tenant=tenant)
        copy_register(base_model=base, kind="worker", url=f"http://127.0.0.1:{number + 2}")
        BaseModel.objects.create(
            name=f"base-{number}",
            served_name="b",
            source="/",
            architecture="L",
            max_model_len=1,
            dtype="f",
            modules={},
        )
        book = price_book_create(name=f"book-{number}")
        price_set(
            book=book,
            base_model="b",
            effective_from=dt.date(2026, 1, 1),
            input_nano=1,
            cached_input_nano=1,
            output_nano=1,
        )
    _fill(Adapter.objects.get(name="pirate"), start=10)
    return made


def _fill(adapter: Adapter, start: int = 1) -> None:
    versions = [
        AdapterVersion.objects.create(
            adapter=adapter, number=number, status="ready", sha256="ab" * 32, uri="file:///a/", rank=2
        )
        for number in range(start, start + 3)
    ]
    for name in ("blue", "green"):
        alias = Alias.objects.create(adapter=adapter, name=name, version=versions[0])
        for version in versions[:2]:
            AliasArm.objects.create(alias=alias, version=version, percent=50)
    adapter_publish(adapter=adapter)


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.costly("its first call loads what the API needs")
def test_rows_cost_no_query_each(name: str, world: World) -> None:
    pattern = next(pattern for pattern in api_urls.urlpatterns if pattern.name == name)
    kwargs = {key: world.values[key] for key in re.findall(r"<(?:\w+:)?(\w+)>", str(pattern.pattern))}
    if name.startswith("price"):
        kwargs = dict.fromkeys(kwargs, "book-0")
    if name == "variants":
        kwargs = {"name": "tiny-base"}
    path = reverse(f"api:{name}", kwargs=kwargs)

    def page(size: int) -> tuple[int, int]:
        with CaptureQueriesContext(connection) as queries:
            answer: Any = world.staff.get(f"{path}?page_size={size}")
        assert answer.status_code == 200, answer.content
        return len(answer.json()["results"]), len(queries)

    page(1)  # fills the process's caches
    (one, few), (many, as_few) = page(1), page(100)
    if name in FILLED:
        assert one == 1
        assert many >= 3
    assert as_few <= few
    assert few <= 12
