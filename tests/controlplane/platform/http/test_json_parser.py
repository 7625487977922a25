"""A JSON body that PostgreSQL could not hold is the caller's mistake (400), not the server's (500)."""

from __future__ import annotations

import pytest
from django.test import Client

from controlplane.adapters.models import Adapter
from controlplane.catalog.models import BaseModel
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Role
from controlplane.tenants.services import user_create


@pytest.fixture
def client(tenant: Tenant, base_model: BaseModel) -> Client:
    Adapter.objects.create(tenant=tenant, name="bot", base_model=base_model)
    client = Client()
    client.force_login(
        user_create(email="o@acme.test", password="long-enough-7", tenant=tenant, role=Role.OWNER)
    )
    return client


@pytest.mark.django_db
@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999", r'"a\u0000b"', r'"\ud800"', r'{"\u0000": 1}'])
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("patch", "adapters/bot", '{"labels": {"a": %s}}'),
        ("post", "webhooks", '{"url": "https://a.example/", "events": [%s]}'),
        ("post", "uploads", '{"name": "a.zip", "size": %s}'),
        ("post", "adapters", '{"name": "b", "base_model": "tiny-base", "uri": %s}'),
        ("post", "adapters/bot/aliases/prod/rollouts", '{"version": 1, "steps": [%s]}'),
        ("post", "keys", '{"name": "k", "scopes": ["manage"], "allowed_models": [%s]}'),
    ],
)
def test_what_no_database_holds_is_a_bad_request(
    client: Client, method: str, path: str, body: str, value: str
) -> None:
    answer = getattr(client, method)(f"/api/v1/{path}", body % value, content_type="application/json")
    assert (answer.status_code, answer.json()["errors"][0]["code"]) == (400, "parse_error")


@pytest.mark.django_db
def test_a_body_that_is_nested_too_deeply_is_a_bad_request(client: Client) -> None:
    answer = client.post("/api/v1/keys", "[" * 100_000, content_type="application/json")
    assert answer.status_code == 400
