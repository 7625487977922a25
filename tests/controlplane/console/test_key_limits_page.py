"""A key's limits on their page, by forms as browsers send them."""

from __future__ import annotations

import pytest
from django.http import HttpResponse
from django.test import Client

from controlplane.routes.models import RouteEntryRow
from controlplane.tenants.limits.models import ScopeLimits
from controlplane.tenants.limits.services import tenant_limits_set
from controlplane.tenants.models import ApiKey, Tenant
from controlplane.tenants.services import api_key_create, api_key_revoke, user_create
from tests.controlplane.console.form_tags import form_tag, send

pytestmark = pytest.mark.django_db
EMPTY = {
    "requests_per_minute": "",
    "tokens_per_minute": "",
    "concurrency": "",
    "priority": "",
    "budget": "",
    "budget_period": "month",
    "budget_alert_percent": "",
}


@pytest.fixture
def key(tenant: Tenant) -> ApiKey:
    tenant_limits_set(tenant=tenant, requests_per_minute=600, budget_nano=500 * 10**9)
    return api_key_create(tenant=tenant, name="shop", scopes=["inference"])[0]


@pytest.fixture
def page(tenant: Tenant) -> Client:
    client = Client()
    client.force_login(user_create(email="a@acme.test", password="long-enough-7", tenant=tenant))
    return client


def save(page: Client, url: str, values: dict[str, str]) -> HttpResponse:
    return send(page, url, values, form="key-limits")


def test_limits_are_set_shown_and_lifted(key: ApiKey, page: Client) -> None:
    url = f"/t/acme/keys/{key.pk}/limits"
    assert f'href="{url}"' in page.get("/t/acme/keys/").content.decode()
    assert "Tenant limit: 600" in page.get(url).content.decode()
    answer = save(
        page, url, EMPTY | {"requests_per_minute": "60", "budget": "12.5", "budget_alert_percent": "80"}
    )
    assert answer.status_code == 302
    row = ScopeLimits.objects.get(api_key=key)
    assert (row.requests_per_minute, row.budget_nano, row.concurrency) == (60, 12_500_000_000, None)
    text = page.get(url).content.decode()
    assert 'value="60"' in text
    assert 'value="12.5"' in text
    assert RouteEntryRow.objects.filter(path=f"limits/key:{key.pk}").exists()
    save(page, url, EMPTY)
    assert not RouteEntryRow.objects.filter(path=f"limits/key:{key.pk}").exists()


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("requests_per_minute", "601", "error-requests_per_minute"),
        ("requests_per_minute", "-1", "error-requests_per_minute"),
        ("tokens_per_minute", "many", "error-tokens_per_minute"),
        ("concurrency", "٣", "error-concurrency"),
        ("priority", "10", "error-priority"),
        ("budget_alert_percent", "0", "error-budget_alert_percent"),
        ("budget", "501", "error-budget"),
        ("budget", "1e999999", "error-budget"),
        ("budget", "0.0000000001", "error-budget"),
        ("budget", "NaN", "error-budget"),
        ("budget_period", "year", "error-budget_period"),
    ],
)
def test_what_cannot_be_is_said_at_its_field_and_kept(
    key: ApiKey, page: Client, field: str, value: str, error: str
) -> None:
    answer = save(page, f"/t/acme/keys/{key.pk}/limits", EMPTY | {field: value})
    text = answer.content.decode()
    assert (answer.status_code, f'id="{error}"' in text) == (422, True)
    assert field == "budget_period" or f'value="{value}"' in text
    assert not ScopeLimits.objects.filter(api_key=key).exists()


def test_the_tenants_bounds_are_in_the_forms_units(key: ApiKey, page: Client) -> None:
    url = f"/t/acme/keys/{key.pk}/limits"
    tenant_limits_set(tenant=key.tenant, budget_nano=250_500_000_000, priority=3)
    text = save(page, url, EMPTY | {"budget": "300"}).content.decode()
    assert "The budget must be from 0 to 250.5 USD" in text
    assert "nano" not in text
    text = save(page, url, EMPTY | {"priority": "2"}).content.decode()
    assert "The priority must be from 3 to 9" in text


def test_who_was_slower_is_told_what_is_in_force(key: ApiKey, page: Client) -> None:
    url = f"/t/acme/keys/{key.pk}/limits"
    early = form_tag(page, url, "key-limits")
    save(page, url, EMPTY | {"concurrency": "7"})
    late = page.post(url, EMPTY | {"concurrency": "9", "seen": early})
    text = late.content.decode()
    assert (late.status_code, "Current value: concurrency 7" in text) == (422, True)
    assert 'value="9"' in text
    assert ScopeLimits.objects.get(api_key=key).concurrency == 7
    assert page.post(url, EMPTY | {"concurrency": "9"}).status_code == 422, "a form without the tag"
    fresh = text.split('name="seen" value="')[1].split('"')[0]
    assert page.post(url, EMPTY | {"concurrency": "9", "seen": fresh}).status_code == 302
    assert ScopeLimits.objects.get(api_key=key).concurrency == 9


def test_a_dead_keys_limits_stay_and_viewers_only_look(key: ApiKey, tenant: Tenant, page: Client) -> None:
    url = f"/t/acme/keys/{key.pk}/limits"
    viewer = Client()
    viewer.force_login(
        user_create(email="v@acme.test", password="long-enough-7", tenant=tenant, role="viewer")
    )
    assert viewer.post(url, EMPTY).status_code == 403
    assert "key-limits-submit" not in viewer.get(url).content.decode()
    api_key_revoke(api_key=key)
    text = page.get(url).content.decode()
    assert "key-limits-submit" not in text
    assert save(page, url, EMPTY | {"concurrency": "1"}).status_code == 422
    assert page.get("/t/acme/keys/none/limits").status_code == 404
