"""A form's `seen` tag: it survives validation errors, and its check causes no deadlock."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import Client

from controlplane.adapters.aliases import alias_move, fallback_set
from controlplane.adapters.lifecycle import adapter_update, version_update
from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.adapters.quotas import quota_set
from controlplane.catalog.models import BaseModel
from controlplane.routes.services import route_lock
from controlplane.tenants.limits.services import key_limits_set, tenant_limits_set
from controlplane.tenants.models import ApiKey, Tenant
from controlplane.tenants.services import api_key_create, api_key_update, user_create
from controlplane.webhooks.models import WebhookEndpoint
from controlplane.webhooks.services import endpoint_create, endpoint_update
from tests.controlplane.adapters.test_splits import ready
from tests.controlplane.console.form_tags import form_tag, form_tag_in

PIRATE = "/t/acme/adapters/pirate/"
LIMITS = {
    "requests_per_minute": "",
    "tokens_per_minute": "",
    "concurrency": "",
    "priority": "",
    "budget": "",
    "budget_period": "month",
    "budget_alert_percent": "",
}
KEY = {"allowed_models": "", "allowed_networks": "", "expires_at": ""}
FORMS: list[tuple[str, str, str, dict[str, Any], dict[str, Any]]] = [
    (
        f"{PIRATE}aliases/prod/",
        "split",
        "split",
        {"percent-1": "half", "percent-3": "50"},
        {"percent-1": "50", "percent-3": "50", "stays": "1"},
    ),
    (f"{PIRATE}aliases/prod/", "fallback", "fallback", {"models": ["none-such"]}, {"models": []}),
    (PIRATE, "fallback", "fallback", {"models": ["none-such"]}, {"models": []}),
    (PIRATE, "about-form", "update", {"labels": "team", "notes": ""}, {"labels": "", "notes": ""}),
    (f"{PIRATE}v2/", "lineage-form", "lineage", {"run_url": "javascript:x"}, {"run_url": ""}),
    ("/t/acme/keys/{key}/", "key-settings", "", KEY | {"expires_at": "soon"}, KEY),
    ("/t/acme/keys/{key}/limits", "key-limits", "", LIMITS | {"priority": "soon"}, LIMITS),
    ("/staff/tenants/acme/", "tenant-limits", "limits", LIMITS | {"priority": "soon"}, LIMITS),
    ("/staff/tenants/acme/", "tenant-quota", "quota", {"adapters": "some"}, {"adapters": ""}),
    (
        "/t/acme/webhooks/{hook}/",
        "webhook-settings",
        "",
        {"url": "ftp://x/", "events": ["budget.alert"]},
        {"url": "https://hooks.example/b", "events": ["budget.alert"]},
    ),
]
"""Page, form, what its address adds, a mistake, and the same without it."""


@pytest.fixture
def key(tenant: Tenant) -> ApiKey:
    return api_key_create(tenant=tenant, name="shop", scopes=["inference"])[0]


@pytest.fixture
def staff(tenant: Tenant) -> Client:
    """Staff, and the tenant's owner."""
    client = Client()
    person = user_create(email="s@acme.test", password="long-enough-7", tenant=tenant, is_staff=True)
    client.force_login(person)
    return client


def changed_by_another(adapter: Adapter, key: ApiKey, hook: WebhookEndpoint) -> None:
    """Everything that one of the forms replaces."""
    alias_move(adapter=adapter, name="prod", number=2)
    for alias in (None, adapter.aliases.get()):
        fallback_set(adapter=adapter, alias=alias, models=["tiny-base"])
    adapter_update(adapter=adapter, labels={"team": "other"}, notes="theirs")
    version_update(version=AdapterVersion.objects.get(adapter=adapter, number=2), notes="theirs")
    api_key_update(api_key=key, allowed_models=["theirs"])
    key_limits_set(api_key=key, concurrency=7)
    tenant_limits_set(tenant=adapter.tenant, concurrency=70)
    quota_set(tenant=adapter.tenant, adapters=70)
    endpoint_update(endpoint=hook, url="https://hooks.example/theirs")


@pytest.mark.django_db
@pytest.mark.parametrize(("url", "form", "to", "mistake", "right"), FORMS)
def test_a_mistake_hides_nobodys_change(
    tenant: Tenant,
    base_model: BaseModel,
    key: ApiKey,
    staff: Client,
    *,
    url: str,
    form: str,
    to: str,
    mistake: dict[str, Any],
    right: dict[str, Any],
) -> None:
    adapter = ready(tenant, base_model)
    alias_move(adapter=adapter, name="prod", number=1)
    hook, _ = endpoint_create(tenant=tenant, url="https://hooks.example/a", events=["budget.alert"])
    url = url.format(key=key.pk, hook=hook.pk)
    early = form_tag(staff, url, form)
    refused = staff.post(url + to, mistake | {"seen": early})
    assert (refused.status_code, b"Current value" in refused.content) == (422, False)
    assert form_tag_in(refused.content.decode(), form) == early
    changed_by_another(adapter, key, hook)
    for values in (mistake, right):
        late = staff.post(url + to, values | {"seen": early}).content.decode()
        assert "Current value" in late, values
        assert form_tag_in(late, form) == form_tag(staff, url, form)
    told = form_tag(staff, url, form)
    assert told != early
    again = staff.post(url + to, mistake | {"seen": told})
    assert form_tag_in(again.content.decode(), form) == told
    assert staff.post(url + to, right | {"seen": told}).status_code == 302


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("by", ["form", "rest"])
def test_who_adds_below_a_tenant_and_who_changes_it_do_not_wait_for_each_other(
    tenant: Tenant, key: ApiKey, staff: Client, by: str
) -> None:
    """Two at once: a key's first limits, whose row refers to the tenant, and the tenant's limits."""
    url, done = "/staff/tenants/acme/", dict[str, Any]()
    values = LIMITS | {"concurrency": "9", "weight": "", "seen": form_tag(staff, url, "tenant-limits")}
    counter_held = threading.Event()

    def adds() -> None:
        try:
            with transaction.atomic():
                route_lock()
                counter_held.set()
                time.sleep(1)  # the other has its lock by then, and waits for the counter
                key_limits_set(api_key=key, requests_per_minute=5)
            done["key"] = "added"
        finally:
            connection.close()

    def changes() -> None:
        try:
            counter_held.wait(10)
            if by == "form":
                answer: Any = staff.post(f"{url}limits", values)
            else:
                rest: dict[str, Any] = {"content_type": "application/json", "headers": {"If-Match": "*"}}
                answer = staff.put("/api/v1/tenants/acme/limits", {"concurrency": 9}, **rest)
            done["tenant"] = answer.status_code
        finally:
            connection.close()

    threads = [threading.Thread(target=part) for part in (adds, changes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert done == {"key": "added", "tenant": 302 if by == "form" else 200}
