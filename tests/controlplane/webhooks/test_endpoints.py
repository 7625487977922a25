"""Endpoints by REST and web page; each change that emits an event does."""

from __future__ import annotations

from io import BytesIO

import pytest
from django.test import Client

from controlplane.adapters.aliases import alias_move, alias_remove, alias_split
from controlplane.adapters.lifecycle import adapter_delete, adapter_restore
from controlplane.adapters.models import AdapterVersion
from controlplane.adapters.services import adapter_register
from controlplane.adapters.validation import version_validate
from controlplane.billing.budgets import _alert
from controlplane.catalog.models import BaseModel
from controlplane.deployments.copies.services import copy_register, copy_remove
from controlplane.platform.audit.models import AuditRecord
from controlplane.tenants.limits.services import tenant_limits_set
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import user_create
from controlplane.webhooks.models import WebhookDelivery, WebhookEndpoint, WebhookEvent
from controlplane.webhooks.services import MOST_ENDPOINTS, endpoint_create
from tests.controlplane.conftest import adapter_files
from tests.controlplane.console.form_tags import form_tag, send

pytestmark = pytest.mark.django_db
URL = "https://hooks.example/acme"


@pytest.fixture
def owner(tenant: Tenant) -> Client:
    client = Client()
    client.force_login(user_create(email="o@acme.test", password="long-enough-7", tenant=tenant))
    return client


def test_the_whole_life_by_rest(owner: Client) -> None:
    body = {"url": URL, "events": ["adapter.deleted"], "description": "ops"}
    made = owner.post("/api/v1/webhooks", body, content_type="application/json")
    assert made.status_code == 201
    secret, path = made.json()["secret"], f"/api/v1/webhooks/{made.json()['id']}"
    assert secret.startswith("whsec_")
    found = owner.get(path)
    assert "secret" not in found.json()
    headers = {"If-Match": found["ETag"]}
    patched = owner.patch(path, {"enabled": False}, content_type="application/json", headers=headers)
    assert patched.json()["disabled_reason"] == "disabled manually"
    assert owner.post(f"{path}/test").status_code == 409
    owner.patch(path, {"enabled": True}, content_type="application/json", headers={"If-Match": "*"})
    delivery = owner.post(f"{path}/test").json()
    assert (delivery["type"], delivery["status"]) == ("webhook.test", "pending")
    rotated = owner.post(f"{path}/rotate", {"overlap_hours": 2}, content_type="application/json").json()
    assert rotated["secret"] != secret
    assert rotated["old_secret_until"] is not None
    listed = owner.get(f"{path}/deliveries", {"status": "pending"}).json()["results"]
    assert [item["id"] for item in listed] == [delivery["id"]]
    assert owner.post(f"{path}/deliveries/{delivery['id']}/resend").status_code == 200
    assert owner.post(f"{path}/deliveries/999/resend").status_code == 404
    assert owner.delete(path, headers={"If-Match": "*"}).status_code == 204
    assert not WebhookDelivery.objects.exists()
    log = list(AuditRecord.objects.filter(action__startswith="webhook.").order_by("id"))
    actions = [record.action.removeprefix("webhook.") for record in log]
    assert actions == ["create", "update", "update", "test", "rotate", "resend", "delete"]
    assert secret not in str([(record.before, record.after) for record in log])


@pytest.mark.parametrize(
    "body",
    [
        {"url": "http://hooks.example/", "events": ["adapter.deleted"]},
        {"url": "https://127.0.0.1/", "events": ["adapter.deleted"]},
        {"url": "https://169.254.169.254/latest", "events": ["adapter.deleted"]},
        {"url": "https://me:pw@hooks.example/", "events": ["adapter.deleted"]},
        {"url": URL, "events": []},
        {"url": URL, "events": ["adapter.eaten"]},
        {"url": URL, "events": ["webhook.test"]},
    ],
)
def test_what_cannot_be_called_or_told_is_refused(owner: Client, body: dict[str, object]) -> None:
    assert owner.post("/api/v1/webhooks", body, content_type="application/json").status_code == 400
    assert not WebhookEndpoint.objects.exists()


def test_a_tenant_has_so_many_endpoints_at_most(tenant: Tenant, owner: Client) -> None:
    for number in range(MOST_ENDPOINTS):
        endpoint_create(tenant=tenant, url=f"{URL}/{number}", events=["adapter.deleted"])
    body = {"url": URL, "events": ["adapter.deleted"]}
    assert owner.post("/api/v1/webhooks", body, content_type="application/json").status_code == 409


def test_the_pages(owner: Client) -> None:
    page = owner.post("/t/acme/webhooks/", {"url": URL, "events": ["adapter.deleted"]}).content.decode()
    endpoint = WebhookEndpoint.objects.get()
    assert 'data-testid="webhook-secret">whsec_' in page
    assert "whsec_" not in owner.get("/t/acme/webhooks/").content.decode()
    path = f"/t/acme/webhooks/{endpoint.pk}/"
    assert owner.post(f"{path}test").status_code == 302
    delivery = WebhookDelivery.objects.get()
    page = owner.get(path).content.decode()
    assert f'data-testid="resend-{delivery.pk}"' in page
    assert owner.post(f"{path}deliveries/{delivery.pk}/resend").status_code == 302
    assert "whsec_" in owner.post(f"{path}rotate", {"overlap": "24"}).content.decode()
    changed = {"url": URL + "/2", "events": ["budget.alert"]}
    early = form_tag(owner, path, "webhook-settings")
    assert send(owner, path, changed, form="webhook-settings").status_code == 302
    endpoint.refresh_from_db()
    assert (endpoint.url, endpoint.events) == (URL + "/2", ["budget.alert"])
    assert endpoint.disabled_at is not None, "the box was not ticked"
    late = owner.post(path, {"url": URL, "events": ["budget.alert"], "seen": early})
    assert (late.status_code, b"events budget.alert; enabled no" in late.content) == (422, True)
    private = {"url": "https://127.0.0.1/", "events": ["budget.alert"]}
    refused = send(owner, path, private, form="webhook-settings")
    assert (refused.status_code, b"public internet" in refused.content) == (422, True)
    ticked = send(owner, path, private | {"enabled": "on"}, form="webhook-settings").content
    box = b'name="enabled" checked'
    assert (box in refused.content, box in ticked) == (False, True), "as it was sent"
    assert owner.post("/t/acme/webhooks/", {"url": "ftp://x/", "events": []}).status_code == 422
    assert owner.post(f"{path}delete").status_code == 302
    assert not WebhookEndpoint.objects.exists()


def test_changes_emit_their_events(tenant: Tenant, base_model: BaseModel) -> None:
    events = [
        "adapter.version.ready",
        "adapter.version.refused",
        "adapter.alias.changed",
        "adapter.deleted",
        "adapter.restored",
        "deployment.copy.added",
        "deployment.copy.removed",
        "budget.alert",
    ]
    endpoint_create(tenant=tenant, url=URL, events=events)
    for config in (adapter_files()["adapter_config.json"], b"{}", adapter_files()["adapter_config.json"]):
        files = adapter_files() | {"adapter_config.json": config}
        streams = {name: BytesIO(data) for name, data in files.items()}
        version = adapter_register(tenant=tenant, name="pirate", base_model=base_model, files=streams)
        version_validate(version_id=version.pk)
    adapter = AdapterVersion.objects.get(number=1).adapter
    alias = alias_move(adapter=adapter, name="prod", number=1)
    alias_move(adapter=adapter, name="prod", number=1)
    alias_split(adapter=adapter, name="prod", arms=[(1, 90), (3, 10)])
    alias_remove(alias=alias)
    adapter_delete(adapter=adapter)
    adapter_restore(adapter=adapter)
    copy = copy_register(base_model=base_model, kind="worker", url="http://127.0.0.1:1")
    copy_register(base_model=base_model, kind="worker", url="http://127.0.0.1:1")
    copy_remove(copy=copy)
    limits = tenant_limits_set(tenant=tenant, budget_nano=100, budget_alert_percent=50)
    _alert(limits, "2026-11", 60)
    _alert(limits, "2026-11", 70)
    told = [(event.type, event.data) for event in WebhookEvent.objects.order_by("created_at")]
    assert [name for name, _ in told] == [
        "adapter.version.ready",
        "adapter.version.refused",
        "adapter.version.ready",
        "adapter.alias.changed",
        "adapter.alias.changed",
        "adapter.alias.changed",
        "adapter.deleted",
        "adapter.restored",
        "deployment.copy.added",
        "deployment.copy.removed",
        "budget.alert",
    ]
    assert told[1][1]["version"] == 2
    assert [data["version"] for name, data in told if name == "adapter.alias.changed"] == [1, 1, None]
    assert told[4][1]["arms"] == [[1, 90], [3, 10]]
    assert [data["copies"] for name, data in told if name.startswith("deployment.")] == [1, 0]
    assert "127.0.0.1" not in str(told), "where a copy stands is the operator's affair"
