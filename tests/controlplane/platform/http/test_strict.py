"""A field that is not known is refused by name, by every call that takes a body."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client

from controlplane.adapters.models import Adapter
from controlplane.catalog.models import BaseModel
from controlplane.platform.http.openapi import _document
from controlplane.tenants.models import Tenant, User
from controlplane.tenants.roles import Role
from controlplane.tenants.services import user_create

OPEN = {"/api/v1/usage/events"}
"""CloudEvents, whose standard lets a sender add attributes; what is data in them is checked."""


@pytest.fixture
def client(tenant: Tenant, base_model: BaseModel) -> Client:
    Adapter.objects.create(tenant=tenant, name="bot", base_model=base_model)
    owner: User = user_create(email="o@acme.test", password="long-enough-7", tenant=tenant, role=Role.OWNER)
    client = Client()
    client.force_login(owner)
    return client


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("method", "path", "body", "attr"),
    [
        ("post", "projects", {"slug": "x", "name": "X", "colour": "red"}, "colour"),
        ("patch", "projects/default", {"name": "X", "nme": "Y"}, "nme"),
        ("patch", "adapters/bot", {"note": "x"}, "note"),
        ("post", "webhooks", {"url": "https://a.example/", "events": ["adapter.deleted"], "on": 1}, "on"),
        ("put", "adapters/bot/aliases/p", {"arms": [{"version": 1, "percent": 50, "pct": 1}]}, "arms.0.pct"),
        ("post", "keys", {"nme": "x", "scopes": ["manage"]}, "nme"),
        ("post", "projects", {"slug": "x", "name": "X", "c" * 100: 1}, "c" * 64),
    ],
)
def test_an_unknown_field_is_refused_by_name(
    client: Client, method: str, path: str, body: dict[str, Any], attr: str
) -> None:
    answer = getattr(client, method)(f"/api/v1/{path}", body, content_type="application/json")
    errors = answer.json()["errors"]
    assert (answer.status_code, [error["attr"] for error in errors]) == (400, [attr])
    assert "is none of " in errors[0]["detail"]


def test_every_body_is_closed_in_the_document() -> None:
    document = json.loads(_document())
    components, found = document["components"]["schemas"], {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            for kind, content in operation.get("requestBody", {}).get("content", {}).items():
                found[f"{method} {path} {kind}"] = _open(content.get("schema", {}), components)
    assert len(found) > 50
    assert {name.split()[1] for name, names in found.items() if names} == OPEN


def _open(schema: Any, components: dict[str, Any]) -> list[str]:
    """Titles of the objects in a schema that take whatever they are sent."""
    match schema:
        case {"$ref": name}:
            return _open(components[name.rpartition("/")[2]], components)
        case {"properties": fields}:
            inside = [name for field in fields.values() for name in _open(field, components)]
            return inside if schema.get("additionalProperties") is False else [", ".join(fields), *inside]
        case {"items": item}:
            return _open(item, components)
        case _:
            parts = [part for kind in ("allOf", "oneOf", "anyOf") for part in schema.get(kind, [])]
            return [name for part in parts for name in _open(part, components)]
