"""Restrictions of a key, from REST to the route table, and in the REST API itself."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from contracts.addresses import Networks
from contracts.environment import SettingsError
from contracts.keys import KeyScope
from controlplane.errors import ConflictError
from controlplane.platform.environment import Environment
from controlplane.routes.selectors import route_table
from controlplane.tenants.models import ApiKey, Tenant
from controlplane.tenants.services import (
    api_key_create,
    api_key_revoke,
    api_key_update,
    api_keys_unroute_expired,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def api(tenant: Tenant) -> Client:
    _, text = api_key_create(tenant=tenant, name="manager", scopes=["manage"])
    return Client(headers={"Authorization": f"Bearer {text}"})


def post(api: Client, path: str, **body: Any) -> Any:
    return api.post(f"/api/v1/{path}", body, content_type="application/json")


def test_restrictions_reach_the_gateways(api: Client) -> None:
    restrictions = {
        "allowed_models": ["pirate", "tiny-base"],
        "allowed_endpoints": ["chat/completions", "models"],
        "allowed_networks": ["192.0.2.0/24", "2001:db8::1"],
    }
    made = post(api, "keys", name="app", scopes=["inference"], **restrictions).json()
    assert made["allowed_networks"] == ["192.0.2.0/24", "2001:db8::1/128"]
    scope = route_table().keys[made["public_id"]].scope
    assert scope == KeyScope(
        models=("pirate", "tiny-base"),
        endpoints=("chat/completions", "models"),
        networks=("192.0.2.0/24", "2001:db8::1/128"),
    )
    changed = api.patch(
        f"/api/v1/keys/{made['public_id']}",
        {"allowed_models": None, "allowed_endpoints": None},
        content_type="application/json",
    )
    assert changed.status_code == 200
    assert route_table().keys[made["public_id"]].scope == KeyScope(
        networks=("192.0.2.0/24", "2001:db8::1/128")
    )
    api.patch(
        f"/api/v1/keys/{made['public_id']}", {"allowed_networks": None}, content_type="application/json"
    )
    assert route_table().keys[made["public_id"]].scope is None
    shown = api.get(f"/api/v1/keys/{made['public_id']}").json()
    assert shown["allowed_models"] is None
    assert "secret" not in json.dumps(shown).replace("old_secret_until", "")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("allowed_models", [], "1 to 64"),
        ("allowed_models", ["a b"], "not a model name"),
        ("allowed_models", [f"m{number}" for number in range(65)], "1 to 64"),
        ("allowed_endpoints", ["chat"], "must be one of chat/completions"),
        ("allowed_networks", ["10.0.0.1/8"], "write 10.0.0.0/8"),
        ("allowed_networks", ["everywhere"], "not an address or network"),
        ("allowed_ips", ["10.0.0.0/8"], "none of"),
    ],
)
def test_a_malformed_restriction_makes_no_key(api: Client, field: str, value: list[str], words: str) -> None:
    answer = post(api, "keys", name="app", scopes=["inference"], **{field: value})
    assert answer.status_code == 400
    [error] = answer.json()["errors"]
    assert error["attr"].startswith(field)
    assert words in error["detail"]
    assert ApiKey.objects.filter(name="app").count() == 0


def test_expiry_is_put_off_while_the_key_lives(tenant: Tenant) -> None:
    soon, later = timezone.now() + dt.timedelta(hours=1), timezone.now() + dt.timedelta(days=1)
    key, _ = api_key_create(tenant=tenant, name="k", scopes=["inference"], expires_at=soon)
    api_key_update(api_key=key, expires_at=later)
    assert route_table().keys[key.pk].expires_at == later.timestamp()
    ApiKey.objects.filter(pk=key.pk).update(expires_at=timezone.now())
    assert api_keys_unroute_expired() == 1
    with pytest.raises(ConflictError, match="revoked or expired"):
        api_key_update(api_key=key, expires_at=None)
    assert route_table().keys == {}


def test_no_change_brings_a_revoked_key_back(tenant: Tenant) -> None:
    key, _ = api_key_create(tenant=tenant, name="k", scopes=["inference"])
    stale = ApiKey.objects.get(pk=key.pk)
    api_key_revoke(api_key=key)
    with pytest.raises(ConflictError):
        api_key_update(api_key=stale, allowed_models=["pirate"])
    assert route_table().keys == {}


@pytest.mark.parametrize(
    ("peer", "forwarded", "proxies", "status"),
    [
        ("192.0.2.7", "", (), 200),
        ("203.0.113.7", "", (), 403),
        ("203.0.113.7", "192.0.2.7", (), 403),
        ("10.0.0.1", "192.0.2.7", ("10.0.0.0/8",), 200),
        ("10.0.0.1", "192.0.2.7, 203.0.113.7", ("10.0.0.0/8",), 403),
    ],
)
def test_networks_hold_for_rest_too(
    tenant: Tenant, settings: Settings, peer: str, forwarded: str, proxies: tuple[str, ...], status: int
) -> None:
    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, trusted_proxies=Networks(proxies))
    _, text = api_key_create(tenant=tenant, name="k", scopes=["manage"], allowed_networks=["192.0.2.0/24"])
    headers = {"Authorization": f"Bearer {text}"} | ({"X-Forwarded-For": forwarded} if forwarded else {})
    assert Client(headers=headers, REMOTE_ADDR=peer).get("/api/v1/keys").status_code == status


def test_proxies_are_named_by_network() -> None:
    with pytest.raises(SettingsError, match="GRAFTWORK_TRUSTED_PROXIES"):
        Environment.from_env({"GRAFTWORK_TRUSTED_PROXIES": "balancer", "GRAFTWORK_SECRET_KEY": "s"})


def test_tenants_salts_are_hex_and_their_own(tenant: Tenant, other_tenant: Tenant) -> None:
    salts = {entry.cache_salt for entry in route_table().tenants.values()}
    assert len(salts) == 2
    assert all(len(bytes.fromhex(salt)) == 16 for salt in salts)
