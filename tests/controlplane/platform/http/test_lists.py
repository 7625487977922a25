"""Lists: pages, filters, and what they cost."""

from __future__ import annotations

import base64
from itertools import chain

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.catalog.models import BaseModel
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create

pytestmark = pytest.mark.django_db


@pytest.fixture
def client(tenant: Tenant) -> Client:
    _, text = api_key_create(tenant=tenant, name="m", scopes=["manage"])
    return Client(headers={"Authorization": f"Bearer {text}"})


@pytest.fixture
def adapters(tenant: Tenant, base_model: BaseModel) -> list[str]:
    names = [f"bot-{number:02}" for number in range(23)]
    for name in names:
        adapter = Adapter.objects.create(tenant=tenant, name=name, base_model=base_model)
        status = "ready" if name < "bot-05" else "refused"
        AdapterVersion.objects.create(adapter=adapter, number=1, status=status, sha256="ab" * 32)
    return names


def pages(client: Client, path: str) -> list[list[str]]:
    found = []
    while path:
        body = client.get(path).json()
        found.append([row["name"] for row in body["results"]])
        path = body["next"]
    return found


def test_pages_hold_each_row_once_also_while_rows_come_and_go(
    client: Client, adapters: list[str], tenant: Tenant
) -> None:
    assert list(chain(*pages(client, "/api/v1/adapters?page_size=5"))) == adapters
    first = client.get("/api/v1/adapters?page_size=10").json()
    assert first["previous"] is None
    Adapter.objects.filter(tenant=tenant, name="bot-03").delete()
    second = client.get(first["next"]).json()
    assert [row["name"] for row in second["results"]] == adapters[10:20]
    back = client.get(second["previous"]).json()
    assert [row["name"] for row in back["results"]] == [name for name in adapters[:10] if name != "bot-03"]


ODD_CURSORS = [base64.b64encode(text).decode() for text in (b"p=a%00b", b"o=-1", b"o=99999999999", b"r=x")]
ODD = ["page_size=0", "page_size=501", "page_size=x", "cursor=", "cursor=%F0", "serach=bot", "status=x"]


@pytest.mark.parametrize("query", [*ODD, *(f"cursor={cursor}" for cursor in ODD_CURSORS)])
def test_what_no_list_gave_is_refused_or_harmless(client: Client, adapters: list[str], query: str) -> None:
    answer = client.get(f"/api/v1/adapters?{query}")
    if "cursor=" in query and answer.status_code == 200:
        assert len(answer.json()["results"]) <= 50
    else:
        assert answer.status_code == 400, answer.content
        assert answer.json()["errors"][0]["attr"] == query.partition("=")[0]


def test_a_cursor_of_another_type_is_refused(client: Client) -> None:
    cursor = base64.b64encode(b"p=no-time").decode()
    answer = client.get(f"/api/v1/keys?cursor={cursor}")
    assert answer.status_code == 400
    assert "start again without one" in answer.json()["errors"][0]["detail"]


def test_filters_narrow(client: Client, adapters: list[str]) -> None:
    def names(query: str) -> list[str]:
        return list(chain(*pages(client, f"/api/v1/adapters?{query}")))

    assert names("search=BOT-1") == adapters[10:20]
    assert names("status=ready") == adapters[:5]
    assert names("status=ready&search=04&page_size=1") == ["bot-04"]
    assert names("base_model=other") == []


def test_a_nul_in_a_path_is_not_found(client: Client) -> None:
    answer = client.get("/api/v1/adapters/a%00b")
    assert answer.status_code == 404
    assert answer.json()["type"] == "client_error"
    assert "openapi.json" in client.get("/api/v1/nowhere").json()["errors"][0]["detail"]


def test_a_page_costs_the_same_queries_however_long(client: Client, adapters: list[str]) -> None:
    client.get("/api/v1/adapters")  # a key's first call in a minute is noted besides
    # The key, and whose it is; then the page, its versions, its aliases.
    for size in (2, 20):
        with CaptureQueriesContext(connection) as queries:
            client.get(f"/api/v1/adapters?page_size={size}")
        assert len([query for query in queries if query["sql"].startswith("SELECT")]) == 5
