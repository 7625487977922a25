"""The request log: whose requests it shows, how it is cut into pages, and what a page costs."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from contracts.adapters.reference import engine_name
from contracts.usage_event import part_id
from controlplane.billing.services import price_book_create, price_set
from controlplane.errors import InvalidInputError, NotFoundError
from controlplane.metering import requests
from controlplane.metering.requests import RequestFilter, request_attempts, request_page
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create, project_create
from tests.controlplane.metering.event_log import event_id, logged

pytestmark = pytest.mark.django_db
PIRATE = engine_name(tenant="acme", adapter="pirate", version=2, sha256="ab" * 32)


def now() -> dt.datetime:
    return timezone.now()


def days(count: int = 7, **values: str) -> RequestFilter:
    today = now().date()
    return RequestFilter(today - dt.timedelta(days=count - 1), today, **values)


def walked(tenant: str, wanted: RequestFilter, size: int) -> list[Any]:
    """Every row, page after page."""
    rows: list[Any] = []
    before = ""
    for _ in range(100):
        page = request_page(tenant=tenant, wanted=wanted, before=before, size=size)
        rows += page.rows
        before = page.older
        if not before:
            return rows
    raise AssertionError("the pages never end")


def test_pages_hold_each_attempt_once_newest_first(tenant: Tenant, other_tenant: Tenant) -> None:
    at = now() - dt.timedelta(hours=50)
    for number in range(25):
        logged("acme", at + dt.timedelta(hours=2 * number), number)
        logged("globex", at + dt.timedelta(hours=2 * number), number)
    rows = walked("acme", days(), 7)
    assert len(rows) == 25
    assert {row.tenant for row in rows} == {"acme"}
    assert [row.event_id for row in rows] == sorted((row.event_id for row in rows), reverse=True)


def test_rows_of_one_moment_are_neither_repeated_nor_left_out(tenant: Tenant) -> None:
    at = now()
    for number in range(9):
        logged("acme", at, number)
    assert len({row.pk for row in walked("acme", days(), 2)}) == 9


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        ({"status": "error"}, 1),
        ({"error_code": "backend_timeout"}, 1),
        ({"adapter": "pirate"}, 2),
        ({"adapter": "pirate@v2"}, 2),
        ({"adapter": "pirate@v1"}, 0),
        ({"adapter": "pir"}, 0),
        ({"adapter": "%"}, 0),
        ({"model": "pirate@prod"}, 1),
        ({"alias": "prod"}, 1),
        ({"key": "k2"}, 1),
        ({"project": "chat"}, 1),
        ({"project": "default", "status": "ok"}, 2),
    ],
)
def test_each_filter_leaves_out_the_others(wanted: dict[str, Any], count: int, tenant: Tenant) -> None:
    logged("acme", now(), 0, status="error", error_code="backend_timeout", adapter=PIRATE)
    logged("acme", now(), 1, adapter=PIRATE, requested_model="pirate@prod", alias="prod", key_id="k2")
    logged("acme", now(), 2)
    logged("acme", now(), 3, project="chat")
    assert len(walked("acme", days(**wanted), 50)) == count


def test_a_rare_filter_is_searched_in_parts(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "SEARCHED", 10)
    at = now() - dt.timedelta(hours=3)
    for number in range(35):
        logged("acme", at + dt.timedelta(minutes=number), number, key_id="rare" if number in (0, 34) else "k")
    first = request_page(tenant="acme", wanted=days(key="rare"))
    assert [row.key_id for row in first.rows] == ["rare"]
    assert first.older
    second = request_page(tenant="acme", wanted=days(key="rare"), before=first.older)
    assert not second.rows
    assert second.older
    assert len(walked("acme", days(key="rare"), 50)) == 2


def test_a_page_costs_the_same_however_deep_it_lies(
    tenant: Tenant, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    for number in range(30):
        logged("acme", now() - dt.timedelta(minutes=number), number)
    before = ""
    for _ in range(3):
        with django_assert_num_queries(1):
            before = request_page(tenant="acme", wanted=days(), before=before, size=5).older
    with django_assert_num_queries(2):
        request_page(tenant="acme", wanted=days(status="ok"), before=before, size=5)


def test_what_cannot_be_asked_is_refused(tenant: Tenant) -> None:
    today = now().date()
    for wanted in (days(32), days(status="fine"), RequestFilter(today, today - dt.timedelta(days=1))):
        with pytest.raises(InvalidInputError):
            request_page(tenant="acme", wanted=wanted)
    with pytest.raises(InvalidInputError):
        request_page(tenant="acme", wanted=days(), before="x")


@pytest.mark.parametrize("ago", [0, 40])
def test_a_request_is_found_by_its_id_with_all_attempts(ago: int, tenant: Tenant) -> None:
    at = now() - dt.timedelta(days=ago)
    gateways = str(event_id(at, 5))
    for request_id in (gateways, "from outside"):
        logged("acme", at, 1, request_id=request_id, attempt=1)
        logged("acme", at, 2, request_id=request_id, attempt=0, status="error")
        found = request_attempts(tenant="acme", request_id=request_id)
        assert [row.attempt for row in found] == [0, 1]
        for tenant_id, project in (("globex", None), ("acme", "chat")):
            with pytest.raises(NotFoundError):
                request_attempts(tenant=tenant_id, request_id=request_id, project=project)


@pytest.mark.parametrize("ago", [0, 40])
def test_a_call_with_several_adapters_is_found_whole_and_by_prompt(ago: int, tenant: Tenant) -> None:
    at = now() - dt.timedelta(days=ago)
    call = str(event_id(at, 5))
    for number, index in enumerate((10, 2, 0)):
        logged("acme", at, 2 * number, request_id=part_id(call, index), attempt=1)
        logged("acme", at, 2 * number + 1, request_id=part_id(call, index), attempt=2)
    logged("acme", at, 9, request_id=str(event_id(at, 6)), attempt=1)
    found = request_attempts(tenant="acme", request_id=call)
    assert [(row.request_id, row.attempt) for row in found] == [
        (part_id(call, index), attempt) for index in (0, 2, 10) for attempt in (1, 2)
    ]
    second = request_attempts(tenant="acme", request_id=part_id(call, 2))
    assert [(row.request_id, row.attempt) for row in second] == [(part_id(call, 2), 1), (part_id(call, 2), 2)]
    with pytest.raises(NotFoundError):
        request_attempts(tenant="acme", request_id=part_id(call, 3))


@pytest.mark.parametrize(
    "text", ["", "\0", "x" * 500, "f" * 12 + "-7fff-8fff-" + "f" * 12, "ffffffff-ffff-7fff-bfff-ffffffffffff"]
)
def test_an_id_of_nothing_is_not_found(text: str, tenant: Tenant) -> None:
    with pytest.raises(NotFoundError):
        request_attempts(tenant="acme", request_id=text)


def _get(client: Client, path: str, key: str, **query: str) -> Any:
    return client.get(path, query, headers={"Authorization": f"Bearer {key}"})


def test_rest_tells_price_and_names_and_pages_by_next(client: Client, tenant: Tenant) -> None:
    book = price_book_create(name="list")
    price_set(
        book=book,
        base_model="tiny",
        effective_from=dt.date(2020, 1, 1),
        input_nano=10,
        cached_input_nano=1,
        output_nano=100,
    )
    api_key, text = api_key_create(tenant=tenant, name="backend", scopes=["manage"])
    for number in range(3):
        logged("acme", now(), number, key_id=api_key.pk)
    unpriced = logged("acme", now() - dt.timedelta(days=1), base_model="other")
    first = _get(client, "/api/v1/requests", text, page_size="2").json()
    assert first["results"][0]["price"] == "0.000003102"
    assert first["results"][0]["key_name"] == "backend"
    assert first["kept_days"] == 400
    second = _get(client, first["next"], text).json()
    assert [row["price"] for row in second["results"]] == ["0.000003102", None]
    assert second["next"] is None
    one = _get(client, f"/api/v1/requests/{unpriced.request_id}", text).json()
    assert one["attempts"][0]["base_model"] == "other"
    assert one["kept_until"] == (unpriced.day + dt.timedelta(days=400)).isoformat()
    for query in ({"status": "fine"}, {"start": "soon"}, {"page_size": "501"}, {"cursor": "x"}):
        assert _get(client, "/api/v1/requests", text, **query).status_code == 400, query


def test_a_key_of_one_project_reads_no_other(client: Client, tenant: Tenant) -> None:
    chat = project_create(tenant=tenant, slug="chat", name="Chat")
    _, text = api_key_create(tenant=tenant, name="k", scopes=["usage"], project=chat)
    own = logged("acme", now(), 0, project="chat")
    other = logged("acme", now(), 1)
    rows = _get(client, "/api/v1/requests", text, project="default").json()["results"]
    assert [row["request_id"] for row in rows] == [own.request_id]
    assert _get(client, f"/api/v1/requests/{other.request_id}", text).status_code == 404
