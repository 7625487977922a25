"""One key's page: expiry and restrictions, changed in place."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import Client
from django.utils import timezone

from controlplane.platform.audit.models import AuditRecord
from controlplane.routes.selectors import route_table
from controlplane.tenants.models import ApiKey, Tenant
from controlplane.tenants.services import api_key_create, api_key_revoke, user_create
from tests.controlplane.console.form_tags import form_tag, send

pytestmark = pytest.mark.django_db
EMPTY: dict[str, Any] = {"allowed_models": "", "allowed_networks": "", "expires_at": ""}


@pytest.fixture
def key(tenant: Tenant) -> ApiKey:
    return api_key_create(tenant=tenant, name="shop", scopes=["inference"])[0]


def person(tenant: Tenant, role: str) -> Client:
    client = Client()
    client.force_login(
        user_create(email=f"{role}@acme.test", password="long-enough-7", tenant=tenant, role=role)
    )
    return client


@pytest.fixture
def page(tenant: Tenant) -> Client:
    return person(tenant, "owner")


def save(page: Client, key: ApiKey, values: dict[str, Any]) -> HttpResponse:
    return send(page, f"/t/acme/keys/{key.pk}/", values, form="key-settings")


def test_a_key_is_held_to_what_the_page_says(key: ApiKey, page: Client) -> None:
    assert f'href="/t/acme/keys/{key.pk}/"' in page.get("/t/acme/keys/").content.decode()
    values = {
        "allowed_models": "support-bot@prod, tiny",
        "allowed_networks": "192.0.2.0/24 2001:db8::1",
        "allowed_endpoints": ["chat/completions", "embeddings"],
        "expires_at": "2099-01-31T18:00",
    }
    assert save(page, key, values).status_code == 302
    key.refresh_from_db()
    assert key.allowed_models == ["support-bot@prod", "tiny"]
    assert key.allowed_networks == ["192.0.2.0/24", "2001:db8::1/128"]
    assert key.allowed_endpoints == ["chat/completions", "embeddings"]
    assert key.expires_at == dt.datetime(2099, 1, 31, 18, tzinfo=dt.UTC)
    route = route_table().keys[key.pk]
    assert route.scope is not None
    assert route.scope.models == ("support-bot@prod", "tiny")
    assert route.expires_at == key.expires_at.timestamp()
    text = page.get(f"/t/acme/keys/{key.pk}/").content.decode()
    assert 'value="2099-01-31T18:00"' in text
    assert 'value="chat/completions" checked' in text
    assert save(page, key, EMPTY).status_code == 302
    key.refresh_from_db()
    held = [key.allowed_models, key.allowed_networks, key.allowed_endpoints, key.expires_at]
    assert not any(held)
    assert route_table().keys[key.pk].scope is None


def test_what_is_left_alone_is_no_change(key: ApiKey, page: Client) -> None:
    exact = timezone.now() + dt.timedelta(days=3, seconds=7)
    ApiKey.objects.filter(pk=key.pk).update(expires_at=exact)
    shown = exact.strftime("%Y-%m-%dT%H:%M")
    save(page, key, EMPTY | {"expires_at": shown, "allowed_models": "tiny"})
    key.refresh_from_db()
    assert (key.expires_at, key.allowed_models) == (exact, ["tiny"]), "to the second"
    record = AuditRecord.objects.get(action="api_key.update")
    assert record.before is not None
    assert record.after is not None
    assert {name for name in record.after if record.after[name] != record.before[name]} == {"allowed_models"}


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("allowed_models", "no@such@form", "error-models"),
        ("allowed_networks", "10.0.0.1/8", "error-networks"),
        ("allowed_endpoints", "audio/speech", "error-endpoints"),
        ("expires_at", "2020-01-01T00:00", "error-expires"),
        ("expires_at", "soon", "error-expires"),
        ("expires_at", "9999-12-31T23:59-05:00", "error-expires"),
    ],
)
def test_what_cannot_be_is_said_at_its_field(
    key: ApiKey, page: Client, field: str, value: str, error: str
) -> None:
    answer = save(page, key, EMPTY | {field: value})
    text = answer.content.decode()
    assert (answer.status_code, f'id="{error}"' in text) == (422, True)
    assert field == "allowed_endpoints" or f'value="{value}"' in text
    assert not AuditRecord.objects.filter(action="api_key.update").exists()


@pytest.mark.parametrize(
    ("text", "hour"), [("2099-01-31T18:00+05:00", 13), ("2099-01-31T18:00Z", 18), ("2099-01-31T18:00", 18)]
)
def test_a_time_with_an_offset_is_that_moment(key: ApiKey, page: Client, text: str, hour: int) -> None:
    assert save(page, key, EMPTY | {"expires_at": text}).status_code == 302
    key.refresh_from_db()
    assert key.expires_at == dt.datetime(2099, 1, 31, hour, tzinfo=dt.UTC)


def test_who_was_slower_is_told_what_is_in_force(key: ApiKey, page: Client) -> None:
    url = f"/t/acme/keys/{key.pk}/"
    early = form_tag(page, url, "key-settings")
    save(page, key, EMPTY | {"allowed_models": "tiny"})
    late = page.post(url, EMPTY | {"allowed_networks": "192.0.2.1", "seen": early})
    assert (late.status_code, "Current value: allowed models tiny" in late.content.decode()) == (422, True)
    key.refresh_from_db()
    assert (key.allowed_models, key.allowed_networks) == (["tiny"], None)


def test_nobody_changes_a_dead_key_or_one_that_may_do_more(key: ApiKey, page: Client, tenant: Tenant) -> None:
    strong = api_key_create(tenant=tenant, name="ops", scopes=["manage"])[0]
    billing = person(tenant, "billing")
    assert billing.get(f"/t/acme/keys/{strong.pk}/").status_code == 403
    assert billing.post(f"/t/acme/keys/{strong.pk}/", EMPTY).status_code == 403
    api_key_revoke(api_key=key)
    assert "key-settings-submit" not in page.get(f"/t/acme/keys/{key.pk}/").content.decode()
    assert save(page, key, EMPTY | {"allowed_models": "tiny"}).status_code == 422
    assert page.get("/t/acme/keys/none/").status_code == 404
