"""Limits as rows: permissions, and the limits that gateways get."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from contracts.limits import Limit, LimitsRoute
from controlplane.errors import InvalidInputError
from controlplane.routes.selectors import route_table
from controlplane.tenants.limits.models import ScopeLimits
from controlplane.tenants.limits.services import key_limits_set, key_limits_unroute_dead, tenant_limits_set
from controlplane.tenants.models import ApiKey, Tenant
from controlplane.tenants.services import api_key_create, api_key_revoke, user_create

pytestmark = pytest.mark.django_db
TENANTS = {"requests_per_minute": 100, "tokens_per_minute": 5000, "budget_nano": 10**12}


@pytest.fixture
def key(tenant: Tenant) -> ApiKey:
    return api_key_create(tenant=tenant, name="k", scopes=["inference"])[0]


def put(client: Client, path: str, body: dict[str, Any], key: str | None = None) -> Any:
    headers = {"If-Match": "*"} | ({"Authorization": f"Bearer {key}"} if key else {})
    return client.put(f"/api/v1/{path}", json.dumps(body), content_type="application/json", headers=headers)


def test_an_alert_that_went_off_does_so_again_only_for_another_level(tenant: Tenant) -> None:
    """Otherwise a change of a rate would repeat the alert of an unchanged budget."""
    level: dict[str, Any] = {"budget_nano": 10**10, "budget_period": "month", "budget_alert_percent": 80}

    def after(**changed: Any) -> str:
        tenant_limits_set(tenant=tenant, **level)
        ScopeLimits.objects.update(budget_alerted="2026-11")
        tenant_limits_set(tenant=tenant, **level | changed)
        return ScopeLimits.objects.get().budget_alerted

    assert after() == after(concurrency=4, priority=2) == "2026-11"
    for changed in ({"budget_nano": 10**11}, {"budget_period": "day"}, {"budget_alert_percent": 90}):
        assert after(**changed) == "", changed


def test_a_tenants_limits_are_published_and_replaced_whole(tenant: Tenant) -> None:
    tenant_limits_set(
        tenant=tenant,
        requests_per_minute=100,
        tokens_per_minute=5000,
        concurrency=7,
        budget_nano=1000,
        budget_alert_percent=80,
        budget_period="day",
        priority=2,
        weight=2.5,
    )
    limits = (
        Limit("requests", 100),
        Limit("tokens", 5000),
        Limit("concurrency", 7),
        Limit("budget", 1000, period="day", alert=800),
    )
    assert route_table().limits == {"tenant:acme": LimitsRoute(limits, 2, 2.5)}
    tenant_limits_set(tenant=tenant, concurrency=0)
    assert route_table().limits == {"tenant:acme": LimitsRoute((Limit("concurrency", 0),))}
    tenant_limits_set(tenant=tenant)
    assert route_table().limits == {}
    assert ScopeLimits.objects.count() == 1


def test_a_keys_limits_lie_within_its_tenants(tenant: Tenant, key: ApiKey) -> None:
    tenant_limits_set(tenant=tenant, priority=3, **TENANTS)
    too_much: tuple[dict[str, Any], ...] = (
        {"requests_per_minute": 101},
        {"tokens_per_minute": 5001},
        {"budget_nano": 10**12 + 1},
        {"priority": 2},
        {"weight": 1},
    )
    for wrong in too_much:
        with pytest.raises(InvalidInputError, match="tenant") as refused:
            key_limits_set(api_key=key, **wrong)
        assert refused.value.field in wrong
    key_limits_set(api_key=key, requests_per_minute=100, concurrency=10**6, priority=3)
    found = route_table().limits[f"key:{key.pk}"]
    assert found == LimitsRoute((Limit("requests", 100), Limit("concurrency", 10**6)), 3)
    # A day's budget above the month's is of no use, but neither bounds the other.
    key_limits_set(api_key=key, budget_nano=2 * 10**12, budget_period="day")


@pytest.mark.parametrize(
    "wrong",
    [
        {"requests_per_minute": -1},
        {"tokens_per_minute": 10**16},
        {"budget_period": "year"},
        {"priority": 10},
        {"weight": 0},
        {"weight": 101},
        {"budget_alert_percent": 0},
        {"colour": 1},
    ],
)
def test_values_have_bounds(tenant: Tenant, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        tenant_limits_set(tenant=tenant, **wrong)
    assert route_table().limits == {}


def test_a_dead_key_takes_no_limits_and_loses_its_own(tenant: Tenant, key: ApiKey) -> None:
    other, _ = api_key_create(tenant=tenant, name="o", scopes=["inference"])
    key_limits_set(api_key=key, requests_per_minute=1)
    key_limits_set(api_key=other, requests_per_minute=2)
    api_key_revoke(api_key=key)
    ApiKey.objects.filter(pk=other.pk).update(expires_at=timezone.now())
    other.refresh_from_db()
    for dead in (key, other):
        with pytest.raises(InvalidInputError, match="revoked"):
            key_limits_set(api_key=dead, requests_per_minute=3)
    assert key_limits_unroute_dead() == 2
    assert (route_table().limits, key_limits_unroute_dead()) == ({}, 0)


def test_rest(tenant: Tenant, key: ApiKey) -> None:
    staff, member = Client(), Client()
    staff.force_login(user_create(email="s@graft.test", password="long-enough-7", is_staff=True))
    member.force_login(user_create(email="a@acme.test", password="long-enough-7", tenant=tenant))
    answer = put(staff, "tenants/acme/limits", {**TENANTS, "budget_alert_percent": 90})
    assert answer.status_code == 200
    assert answer.json()["scope"] == "tenant:acme"
    assert put(member, "tenants/acme/limits", {}).status_code == 403
    assert member.get("/api/v1/limits").json()["tokens_per_minute"] == 5000
    assert put(member, f"keys/{key.pk}/limits", {"requests_per_minute": 5}).status_code == 200
    assert member.get(f"/api/v1/keys/{key.pk}/limits").json()["requests_per_minute"] == 5
    above = put(member, f"keys/{key.pk}/limits", {"requests_per_minute": 500})
    assert above.status_code == 400
    assert above.json()["errors"][0]["attr"] == "requests_per_minute"
    assert put(staff, "tenants/acme/limits", {"concurrency": -1}).status_code == 400
    assert put(staff, "tenants/acme/limits", {"prepaid_stop": True}).json()["prepaid_stop"]
    assert put(staff, "tenants/acme/limits", TENANTS).json()["prepaid_stop"], "not lifted by the way"
    assert not put(staff, "tenants/acme/limits", {"prepaid_stop": False}).json()["prepaid_stop"]
    misspelt = put(staff, "tenants/acme/limits", {"request_per_minute": 5})
    assert (misspelt.status_code, misspelt.json()["errors"][0]["attr"]) == (400, "request_per_minute")
    assert (
        put(staff, "tenants/acme/limits", staff.get("/api/v1/tenants/acme/limits").json()).status_code == 200
    )
