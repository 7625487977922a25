"""The log by REST: pages that stay true, filters, files of any length."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import connection
from django.test import AsyncRequestFactory, Client

from controlplane.platform.audit import selectors
from controlplane.platform.audit.export import export_lines
from controlplane.platform.audit.models import AuditRecord
from controlplane.platform.audit.selectors import audit_chunks, audit_list
from controlplane.platform.http.streaming import streamed
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create, api_key_revoke, user_create

pytestmark = pytest.mark.django_db


@pytest.fixture
def client(tenant: Tenant, other_tenant: Tenant) -> Client:
    """Acme's owner; both tenants have a log."""
    api_key_create(tenant=other_tenant, name="theirs", scopes=["manage"])
    client = Client()
    client.force_login(user_create(email="o@acme.test", password="long-enough-7", tenant=tenant))
    api_key_create(tenant=tenant, name="mine", scopes=["manage"])
    return client


@pytest.fixture
def staff(db: None) -> Client:
    client = Client()
    client.force_login(user_create(email="s@graft.test", password="long-enough-7", is_staff=True))
    return client


def records(client: Client, path: str = "audit", **query: str | int) -> list[dict[str, Any]]:
    reply = client.get(f"/api/v1/{path}", query)
    assert reply.status_code == 200, reply.content
    found: list[dict[str, Any]] = reply.json()["results"]
    return found


def test_a_tenant_reads_its_own_log_newest_first(client: Client) -> None:
    found = records(client)
    assert [record["action"] for record in found] == ["api_key.create", "user.create", "tenant.create"]
    assert {record["tenant"] for record in found} == {"acme"}
    assert found[0]["actor"]["kind"] == "system"
    assert found[0]["target"]["type"] == "apikey"


def test_pages_stay_true_while_records_are_added(client: Client, tenant: Tenant) -> None:
    reply = client.get("/api/v1/audit", {"page_size": 1}).json()
    api_key_create(tenant=tenant, name="later", scopes=["manage"])
    assert [record["number"] for record in reply["results"]] == [3]
    following = client.get(reply["next"]).json()
    assert [record["number"] for record in following["results"]] == [2]
    assert (
        client.get(client.get(following["next"]).json()["previous"]).json()["results"] == following["results"]
    )


def test_filters(client: Client, tenant: Tenant) -> None:
    key, _ = api_key_create(tenant=tenant, name="k", scopes=["manage"])
    api_key_revoke(api_key=key)
    assert [r["action"] for r in records(client, action="api_key.revoke")] == ["api_key.revoke"]
    assert len(records(client, action="api_key.")) == 3
    assert len(records(client, target=key.pk)) == 2
    assert records(client, actor="nobody@acme.test") == []
    newest = records(client)[0]["at"]
    assert len(records(client, since=newest)) == 1
    assert len(records(client, until=newest)) == 4
    assert client.get("/api/v1/audit", {"since": "yesterday"}).status_code == 400
    assert client.get("/api/v1/audit", {"tenant": "globex"}).status_code == 400


def test_staff_reads_everybodys_and_the_platforms_own(client: Client, staff: Client) -> None:
    assert {record["tenant"] for record in records(staff, "fleet/audit")} == {"acme", "globex", ""}
    assert {record["tenant"] for record in records(staff, "fleet/audit", tenant="globex")} == {"globex"}
    assert [r["action"] for r in records(staff, "fleet/audit", tenant="-")] == ["user.create"]


def test_the_chains_end_is_told(client: Client) -> None:
    newest = AuditRecord.objects.filter(tenant="acme").latest("number")
    chain = client.get("/api/v1/audit/chain").json()
    assert (chain["number"], chain["sha256"]) == (newest.number, newest.sha256)


def download(client: Client, path: str, **query: str | int) -> str:
    reply = client.get(f"/api/v1/{path}", query)
    assert reply.status_code == 200
    assert reply.streaming
    assert "attachment" in reply["Content-Disposition"]
    return reply.getvalue().decode()


def test_the_log_as_files(client: Client, staff: Client) -> None:
    lines = [json.loads(line) for line in download(client, "audit/export").splitlines()]
    assert [line["number"] for line in lines] == [1, 2, 3]
    rows = list(csv.DictReader(io.StringIO(download(client, "audit/export", form="csv"))))
    assert [row["action"] for row in rows] == ["tenant.create", "user.create", "api_key.create"]
    assert rows[2]["target_name"].startswith("gw_")
    assert json.loads(rows[2]["after"])["name"] == "mine"
    body = {"name": "k", "scopes": ["manage"]}
    client.post("/api/v1/keys", body, content_type="application/json", headers={"User-Agent": "=1+1"})
    assert "'=1+1" in download(client, "audit/export", form="csv"), "a spreadsheet must not compute it"
    assert "globex" not in download(client, "audit/export")
    assert "globex" in download(staff, "fleet/audit/export")
    assert "acme" not in download(staff, "fleet/audit/export", tenant="globex")
    assert client.get("/api/v1/audit/export", {"form": "xml"}).status_code == 400


@pytest.mark.django_db(transaction=True)
def test_a_download_is_written_while_it_is_read(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under ASGI too, where Django would collect a plain iterator first."""
    for number in range(5):
        api_key_create(tenant=tenant, name=f"k{number}", scopes=["manage"])
    monkeypatch.setattr(selectors, "CHUNK", 2)
    lines = export_lines(audit_chunks(records=audit_list(tenant="acme")), "jsonl")
    response = streamed(AsyncRequestFactory().get("/"), lines, content_type="text/plain", file_name="a.jsonl")

    async def read() -> list[int]:
        assert response.is_async
        content = response.streaming_content
        assert isinstance(content, AsyncIterator)
        try:
            return [len(piece.splitlines()) async for piece in content]
        finally:
            # The thread that read has a connection of its own.
            await sync_to_async(lambda: connection.close())()

    assert asyncio.run(read()) == [2, 2, 2]


def test_a_download_that_is_given_up_is_closed_with_its_response() -> None:
    """In the thread that has made its pieces, before the thread's connection goes to another request."""
    threads: list[int] = []

    def pieces() -> Iterator[bytes]:
        try:
            while True:
                threads.append(threading.get_ident())
                yield b"x"
        finally:
            threads.append(threading.get_ident())

    response = streamed(
        AsyncRequestFactory().get("/"), pieces(), content_type="text/plain", file_name="a.txt"
    )

    async def hang_up() -> None:
        async with ThreadSensitiveContext():
            content = response.streaming_content
            assert isinstance(content, AsyncIterator)
            assert await anext(content) == b"x"
            await sync_to_async(response.close)()

    asyncio.run(hang_up())
    assert len(threads) == 2, "made one piece, and closed"
    assert threads[0] == threads[1] != threading.get_ident()
