"""Adapters that gateways hold back: recorded and announced once, and released for every gateway."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
import redis
from django.core import mail
from django.test import Client

from contracts.adapters.reference import AdapterRef
from contracts.quarantine import QUARANTINES, Quarantine
from controlplane.deployments.placement.residency.openai_http import OpenAIHttpResidency
from controlplane.deployments.provisioners.base import ProvisioningError
from controlplane.errors import ConflictError
from controlplane.monitoring.models import AdapterQuarantine
from controlplane.monitoring.quarantines.notices import quarantine_notice_send, quarantine_notices_due
from controlplane.monitoring.quarantines.services import (
    KEEP,
    quarantine_release,
    quarantines_forget,
    quarantines_sync,
)
from controlplane.platform.audit.models import AuditRecord
from controlplane.platform.mail_server import MailServer
from controlplane.tenants.models import Tenant, User
from controlplane.webhooks.models import WebhookEvent
from controlplane.webhooks.services import endpoint_create

pytestmark = pytest.mark.django_db
REF = AdapterRef("t_acme.a_support-bot.v1.abababababab", "file:///a/", "ab" * 32, 2)
NAME = REF.name
EVENTS = ["adapter.version.quarantined", "adapter.version.released"]


@pytest.fixture
def shared(redis_url: str) -> redis.Redis:
    return redis.Redis.from_url(redis_url)


def hold(shared: redis.Redis, *, seconds: float = 600.0, **changes: Any) -> Quarantine:
    """Hold the adapter back as a gateway does."""
    now = time.time()
    found = Quarantine("tiny-base", NAME, now, now + seconds, 1, ("copy-1", "copy-2"))
    found = replace(found, **changes)
    shared.hset(QUARANTINES, found.adapter, found.to_json())
    return found


def stored(shared: redis.Redis) -> Quarantine:
    text: Any = shared.hget(QUARANTINES, NAME)
    return Quarantine.from_json(text)


def release(row: AdapterQuarantine, commit: Any) -> None:
    with commit(execute=True):
        quarantine_release(quarantine=row)


def test_a_quarantine_is_recorded_and_announced_once(
    shared: redis.Redis, acme: Tenant, owner: User, viewer: User, staff: User
) -> None:
    endpoint_create(tenant=acme, url="https://hooks.example.com/a", events=EVENTS)
    hold(shared)
    assert (quarantines_sync(), quarantines_sync()) == (1, 0)
    row = AdapterQuarantine.objects.get()
    assert (str(row), row.base_model, row.copies, row.is_held) == (
        "acme/support-bot@v1",
        "tiny-base",
        ["copy-1", "copy-2"],
        True,
    )
    event = WebhookEvent.objects.get()
    assert (event.tenant_id, event.type, event.data["dead_copies"]) == ("acme", EVENTS[0], 2)
    assert "copy-1" not in str(event.data), "a tenant learns no copies' names"
    record = AuditRecord.objects.get(action="adapter_version.quarantine")
    assert record.tenant == "acme"
    assert record.after is not None
    assert record.after["adapter"] == "acme/support-bot@v1"
    with MailServer() as server:
        for due in quarantine_notices_due():
            assert quarantine_notice_send(quarantine_id=due, server=server)
    assert quarantine_notices_due() == []
    texts = {message.to[0]: str(message.body) for message in mail.outbox}
    assert set(texts) == {"owner@acme.example", "staff@example.com"}
    assert "register a new version" in texts["owner@acme.example"]
    assert "/staff/quarantines/" in texts["staff@example.com"]
    assert "/staff/" not in texts["owner@acme.example"]


def test_the_next_quarantine_of_the_same_adapter_is_another(shared: redis.Redis, acme: Tenant) -> None:
    hold(shared)
    quarantines_sync()
    hold(shared, times=2)
    assert quarantines_sync() == 1
    assert list(AdapterQuarantine.objects.values_list("times", flat=True)) == [2, 1]


def test_a_release_reaches_gateways_and_is_audited(
    shared: redis.Redis, acme: Tenant, django_capture_on_commit_callbacks: Any
) -> None:
    endpoint_create(tenant=acme, url="https://hooks.example.com/a", events=EVENTS)
    held = hold(shared)
    quarantines_sync()
    row = AdapterQuarantine.objects.get()
    release(row, django_capture_on_commit_callbacks)
    found = stored(shared)
    assert (found.times, found.until) == (0, found.at)
    assert found.at >= held.at, "earlier deaths no longer count"
    assert WebhookEvent.objects.filter(type=EVENTS[1]).count() == 1
    assert AuditRecord.objects.filter(tenant="acme", action="adapter_version.release").count() == 1
    with pytest.raises(ConflictError):
        quarantine_release(quarantine=row)
    assert quarantines_sync() == 0


def test_a_release_that_did_not_reach_redis_is_repeated(shared: redis.Redis, acme: Tenant) -> None:
    hold(shared)
    quarantines_sync()
    # The callback after the commit is lost, as with a process that is killed.
    quarantine_release(quarantine=AdapterQuarantine.objects.get())
    assert stored(shared).times == 1
    quarantines_sync()
    assert stored(shared).times == 0


def test_a_late_release_does_not_end_a_newer_quarantine(
    shared: redis.Redis, acme: Tenant, django_capture_on_commit_callbacks: Any
) -> None:
    hold(shared)
    quarantines_sync()
    row = AdapterQuarantine.objects.get()
    newer = hold(shared, times=2)
    release(row, django_capture_on_commit_callbacks)
    assert stored(shared) == newer


def test_values_of_another_release_are_ignored(shared: redis.Redis, acme: Tenant) -> None:
    shared.hset(QUARANTINES, "x", "{}")
    hold(shared, adapter="no engine name")
    assert quarantines_sync() == 0


def test_old_quarantines_are_deleted(shared: redis.Redis, acme: Tenant) -> None:
    hold(shared)
    quarantines_sync()
    until = AdapterQuarantine.objects.get().until
    assert quarantines_forget(now=until + KEEP) == 0
    assert quarantines_forget(now=until + 2 * KEEP) == 1


def test_staff_list_and_release_by_rest_and_page(
    client: Client, staff: User, owner: User, shared: redis.Redis
) -> None:
    hold(shared)
    quarantines_sync()
    row = AdapterQuarantine.objects.get()
    path = f"/api/v1/fleet/quarantines/{row.pk}/release"
    client.force_login(owner)
    assert client.get("/api/v1/fleet/quarantines").status_code == 403
    assert client.post(path).status_code == 403
    client.force_login(staff)
    (shown,) = client.get("/api/v1/fleet/quarantines").json()["results"]
    assert (shown["tenant"], shown["adapter"], shown["is_held"]) == ("acme", "support-bot", True)
    text = client.get("/staff/quarantines/").content.decode()
    assert "acme/support-bot@v1" in text
    assert client.post(f"/staff/quarantines/{row.pk}/release").status_code == 302
    assert "Released" in client.get("/staff/quarantines/").content.decode()
    assert client.post(path).status_code == 409
    assert client.post("/api/v1/fleet/quarantines/999/release").status_code == 404


def test_the_control_plane_loads_no_quarantined_adapter(shared: redis.Redis, graftwork: Any) -> None:
    hold(shared)
    residency = OpenAIHttpResidency("http://127.0.0.1:9", {})
    with pytest.raises(ProvisioningError, match="held back") as caught:
        residency.pin(REF)
    assert caught.value.transient
