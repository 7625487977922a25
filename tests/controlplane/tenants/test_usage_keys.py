"""Keys with scope `usage`: they read what their own project used, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from controlplane.metering.models import UsageRollup
from controlplane.routes.models import RouteEntryRow
from controlplane.tenants.models import ApiKey, Tenant
from controlplane.tenants.services import api_key_create, api_key_revoke, project_create

pytestmark = pytest.mark.django_db
QUERY = {"start": "2026-01-01", "end": "2026-01-31", "group_by": "base"}


def used(tenant: str, project: str, requests: int) -> None:
    UsageRollup.objects.create(
        day="2026-01-02",
        tenant=tenant,
        project=project,
        key_id="k",
        adapter="",
        alias="",
        base_model="b",
        backend="w",
        status="ok",
        requests=requests,
        prompt_tokens=1,
        cached_tokens=0,
        completion_tokens=1,
    )


def read(text: str, path: str = "/api/v1/usage") -> Any:
    return Client().get(path, QUERY, headers={"Authorization": f"Bearer {text}"})


@pytest.fixture
def usage(tenant: Tenant, other_tenant: Tenant) -> None:
    project_create(tenant=tenant, slug="chat", name="Chat")
    for slug, project, requests in (("acme", "default", 3), ("acme", "chat", 5), ("globex", "chat", 7)):
        used(slug, project, requests)


@pytest.mark.usefixtures("usage")
def test_it_reads_its_own_projects_usage(tenant: Tenant) -> None:
    chat = tenant.projects.get(slug="chat")
    _, text = api_key_create(tenant=tenant, name="dashboard", scopes=["usage"], project=chat)
    body = read(text).json()
    assert [(row["group"], row["requests"]) for row in body["rows"]] == [({"base": "b"}, 5)]
    assert body["total"]["requests"] == 5


@pytest.mark.usefixtures("usage")
def test_a_key_that_manages_reads_all_of_the_tenants(tenant: Tenant) -> None:
    chat = tenant.projects.get(slug="chat")
    _, text = api_key_create(tenant=tenant, name="both", scopes=["manage", "usage"], project=chat)
    assert read(text).json()["total"]["requests"] == 8


@pytest.mark.parametrize("path", ["me", "keys", "limits", "adapters", "base-models", "audit", "fleet/usage"])
def test_it_reads_nothing_else(path: str, tenant: Tenant) -> None:
    _, text = api_key_create(tenant=tenant, name="dashboard", scopes=["usage"])
    assert read(text, f"/api/v1/{path}").status_code == 403


def test_no_gateway_takes_it_unless_it_may_call_models(tenant: Tenant) -> None:
    reader, _ = api_key_create(tenant=tenant, name="dashboard", scopes=["usage"])
    both, text = api_key_create(tenant=tenant, name="app", scopes=["inference", "usage"])
    paths = set(RouteEntryRow.objects.filter(path__startswith="keys/").values_list("path", flat=True))
    assert paths == {f"keys/{both.pk}"}
    assert read(text).status_code == 200
    api_key_revoke(api_key=both)
    assert read(text).status_code == 401
    assert ApiKey.objects.get(pk=reader.pk).scopes == ["usage"]


def test_the_refusal_says_what_to_do(tenant: Tenant) -> None:
    _, text = api_key_create(tenant=tenant, name="dashboard", scopes=["usage"])
    detail = read(text, "/api/v1/keys").json()["errors"][0]["detail"]
    assert "keys.read" in detail
    assert "scope manage" in detail
