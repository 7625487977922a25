"""A key opens the REST API until it expires or is revoked."""

from __future__ import annotations

import datetime as dt

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.errors import InvalidInputError
from controlplane.routes.selectors import route_table
from controlplane.tenants.models import ApiKey, Tenant
from controlplane.tenants.services import api_key_create, api_key_revoke, api_keys_unroute_expired
from controlplane.tenants.tasks import tidy

pytestmark = pytest.mark.django_db


def status(text: str) -> int:
    return Client(headers={"Authorization": f"Bearer {text}"}).get("/api/v1/keys").status_code


def test_a_revoked_key_opens_nothing(tenant: Tenant) -> None:
    key, text = api_key_create(tenant=tenant, name="k", scopes=["manage"])
    assert status(text) == 200
    revoked_at = api_key_revoke(api_key=key).revoked_at
    assert status(text) == 401
    assert api_key_revoke(api_key=key).revoked_at == revoked_at


def test_an_expired_key_opens_nothing(tenant: Tenant) -> None:
    soon = timezone.now() + dt.timedelta(hours=1)
    key, text = api_key_create(tenant=tenant, name="k", scopes=["manage"], expires_at=soon)
    assert status(text) == 200
    ApiKey.objects.filter(pk=key.pk).update(expires_at=timezone.now())
    assert status(text) == 401
    with pytest.raises(InvalidInputError, match="future"):
        api_key_create(tenant=tenant, name="k", scopes=["manage"], expires_at=timezone.now())


def test_a_key_needs_its_own_secret_and_the_prefix(tenant: Tenant) -> None:
    key, text = api_key_create(tenant=tenant, name="k", scopes=["manage"])
    _, other = api_key_create(tenant=tenant, name="o", scopes=["manage"])
    assert status(f"gw_{key.pk}_{other.rpartition('_')[2]}") == 401
    assert status(text.replace("gw_", "xx_")) == 401
    assert status(f"gw_{key.pk}_") == 401


def test_an_expired_keys_route_is_forgotten(tenant: Tenant) -> None:
    later = timezone.now() + dt.timedelta(hours=1)
    keys = [
        api_key_create(tenant=tenant, name=name, scopes=["inference"], expires_at=expires_at)[0]
        for name, expires_at in (("expired", later), ("running", later), ("lasting", None))
    ]
    ApiKey.objects.filter(pk=keys[0].pk).update(expires_at=timezone.now())
    tidy()
    assert set(route_table().keys) == {keys[1].pk, keys[2].pk}
    assert api_keys_unroute_expired() == 0
