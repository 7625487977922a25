"""One rule for every operation on a key: the caller holds each permission that the key grants."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from django.test import Client

from controlplane.errors import ForbiddenError
from controlplane.tenants.access import Access
from controlplane.tenants.limits.services import key_limits_set
from controlplane.tenants.models import ApiKey, Tenant, User
from controlplane.tenants.roles import Role
from controlplane.tenants.selectors import project_get
from controlplane.tenants.services import (
    api_key_create,
    api_key_revoke,
    api_key_rotate,
    api_key_update,
    service_account_create,
    user_create,
)

pytestmark = pytest.mark.django_db

KEYS = {
    "admin's manage": ("admin", "manage"),
    "admin's inference": ("admin", "inference"),
    "viewer's usage:write": ("viewer", "usage:write"),
    "viewer's manage": ("viewer", "manage"),
}
ENGINEER_MAY = {"admin's inference", "viewer's manage"}


@pytest.fixture
def keys(tenant: Tenant) -> dict[str, ApiKey]:
    project = project_get(tenant=tenant, slug="default")
    accounts = {
        role: service_account_create(project=project, name=role, role=role) for role in ("admin", "viewer")
    }
    return {
        name: api_key_create(
            tenant=tenant, name=name, scopes=[scope], service_account=accounts[role], allowed_models=["m"]
        )[0]
        for name, (role, scope) in KEYS.items()
    }


def member(tenant: Tenant, role: Role) -> User:
    return user_create(email=f"{role}@acme.test", password="long-enough-7", tenant=tenant, role=role)


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("role", [Role.ENGINEER, Role.ADMIN, Role.VIEWER])
def test_services_ask_for_the_same_permissions(
    name: str, role: Role, tenant: Tenant, keys: dict[str, ApiKey]
) -> None:
    key, by = keys[name], Access(tenant, role)
    permitted = role == Role.ADMIN or (role == Role.ENGINEER and name in ENGINEER_MAY)
    if role == Role.VIEWER:
        permitted = name in ENGINEER_MAY  # the routes ask viewers for keys.write before
    operations: list[Callable[[], object]] = [
        partial(api_key_update, api_key=key, by=by, allowed_models=None),
        partial(key_limits_set, api_key=key, by=by, requests_per_minute=1),
        partial(api_key_rotate, api_key=key, by=by),
        partial(api_key_revoke, api_key=key, by=by),
    ]
    for operation in operations:
        if permitted:
            operation()
        else:
            with pytest.raises(ForbiddenError, match="it grants"):
                operation()
    key.refresh_from_db()
    assert (key.revoked_at is not None, key.rotated_at is not None, key.allowed_models is None) == (
        (permitted,) * 3
    )


@pytest.mark.parametrize("name", KEYS)
def test_an_engineer_by_rest(name: str, tenant: Tenant, keys: dict[str, ApiKey]) -> None:
    client, url = Client(headers={"If-Match": "*"}), f"/api/v1/keys/{keys[name].pk}"
    client.force_login(member(tenant, Role.ENGINEER))
    changes = {"allowed_models": None}
    answers = [
        client.patch(url, changes, content_type="application/json"),
        client.put(f"{url}/limits", {"requests_per_minute": 1}, content_type="application/json"),
        client.post(f"{url}/rotate", {}, content_type="application/json"),
        client.delete(url),
    ]
    statuses = [answer.status_code for answer in answers]
    assert statuses == ([200, 200, 200, 204] if name in ENGINEER_MAY else [403] * 4)
    assert (ApiKey.objects.get(pk=keys[name].pk).revoked_at is not None) == (name in ENGINEER_MAY)


@pytest.mark.parametrize("name", KEYS)
def test_an_engineer_by_the_pages(name: str, tenant: Tenant, keys: dict[str, ApiKey]) -> None:
    client, key = Client(), keys[name]
    client.force_login(member(tenant, Role.ENGINEER))
    permitted = name in ENGINEER_MAY
    listed = client.get("/t/acme/keys/").content.decode()
    for button in ("rotate", "revoke"):
        assert (f'data-testid="{button}-{key.pk}-open"' in listed) == permitted
    for page, button in (("", "key-settings-submit"), ("limits", "key-limits-submit")):
        shown = client.get(f"/t/acme/keys/{key.pk}/{page}").content.decode()
        assert (f'data-testid="{button}"' in shown) == permitted
    assert client.post(f"/t/acme/keys/{key.pk}/rotate", {"overlap": "0"}).status_code == (
        200 if permitted else 403
    )
    assert client.post(f"/t/acme/keys/{key.pk}/revoke").status_code == (302 if permitted else 403)
    assert (ApiKey.objects.get(pk=key.pk).revoked_at is not None) == permitted
