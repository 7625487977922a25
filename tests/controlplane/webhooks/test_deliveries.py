"""At least once, later and later, until it is hopeless."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import time

import pytest
from django.db import connection, transaction
from django.utils import timezone
from pytest_django import Settings
from standardwebhooks import Webhook, WebhookVerificationError

from controlplane.platform.audit.models import AuditRecord
from controlplane.platform.open_endpoints import OpenEndpoints
from controlplane.tenants.models import Tenant
from controlplane.webhooks import sending
from controlplane.webhooks.deliveries import (
    DISABLE_AFTER,
    LEASE,
    WAITS_S,
    deliveries_enqueue_due,
    delivery_attempt,
    events_forget,
)
from controlplane.webhooks.models import WebhookDelivery, WebhookEndpoint, WebhookEvent
from controlplane.webhooks.outbox import event_emit
from controlplane.webhooks.services import (
    delivery_resend,
    endpoint_create,
    endpoint_rotate,
    endpoint_test,
    endpoint_update,
)
from tests.controlplane.webhooks.conftest import Receiver
from tests.dripping import OK, dripping, lasting

pytestmark = pytest.mark.django_db
Endpoint = tuple[WebhookEndpoint, str]


def attempt(delivery: WebhookDelivery) -> WebhookDelivery:
    """The next attempt, whenever it would be due."""
    WebhookDelivery.objects.filter(pk=delivery.pk).update(next_at=timezone.now())
    delivery_attempt(delivery_id=delivery.pk)
    delivery.refresh_from_db()
    return delivery


def test_a_delivery_is_signed_and_its_answer_kept(endpoint: Endpoint, receiver: Receiver) -> None:
    event_emit(tenant="acme", type="adapter.deleted", data={"adapter": "pirate"})
    delivery = attempt(WebhookDelivery.objects.get())
    assert (delivery.status, delivery.last_status, delivery.last_answer) == ("delivered", 200, "fine")
    headers, body = receiver.requests[0]
    assert headers["webhook-id"] == delivery.event_id
    event = Webhook(endpoint[1]).verify(body, headers)
    assert (event["type"], event["data"]) == ("adapter.deleted", {"adapter": "pirate"})
    assert dt.datetime.fromisoformat(event["timestamp"]) == delivery.event.created_at
    assert endpoint[1] not in endpoint[0].secret, "secrets are sealed"


def test_a_replay_is_refused_by_time_and_told_by_id(endpoint: Endpoint, receiver: Receiver) -> None:
    delivery = endpoint_test(endpoint=endpoint[0])
    attempt(delivery)
    headers, body = receiver.requests[0]
    old = headers | {"webhook-timestamp": str(int(time.time()) - 3600)}
    with pytest.raises(WebhookVerificationError, match="too old"):
        Webhook(endpoint[1]).verify(body, old)
    for changed in ({"webhook-id": "msg_other"}, {"webhook-timestamp": str(int(time.time()) + 1)}):
        with pytest.raises(WebhookVerificationError, match="No matching"):
            Webhook(endpoint[1]).verify(body, headers | changed)
    with pytest.raises(WebhookVerificationError, match="No matching"):
        Webhook(endpoint[1]).verify(body + b" ", headers)
    attempt(delivery_resend(delivery=delivery))
    again, same = receiver.requests[1]
    assert (again["webhook-id"], same) == (headers["webhook-id"], body)
    Webhook(endpoint[1]).verify(same, again)


def test_during_a_rotation_both_secrets_verify(endpoint: Endpoint, receiver: Receiver) -> None:
    rotated, new = endpoint_rotate(endpoint=endpoint[0], overlap=dt.timedelta(hours=1))
    attempt(endpoint_test(endpoint=rotated))
    headers, body = receiver.requests[-1]
    for secret in (endpoint[1], new):
        Webhook(secret).verify(body, headers)
    WebhookEndpoint.objects.update(old_secret_until=timezone.now())
    attempt(endpoint_test(endpoint=WebhookEndpoint.objects.get()))
    headers, body = receiver.requests[-1]
    Webhook(new).verify(body, headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(endpoint[1]).verify(body, headers)


def test_failures_are_tried_again_later_and_later(endpoint: Endpoint, receiver: Receiver) -> None:
    receiver.status, receiver.body = 500, b"\0broken" + b"x" * 5000
    delivery = endpoint_test(endpoint=endpoint[0])
    for count, wait in enumerate(WAITS_S, start=1):
        before = timezone.now()
        delivery = attempt(delivery)
        assert (delivery.status, delivery.attempts, delivery.last_status) == ("pending", count, 500)
        assert wait - 1 <= (delivery.next_at - before).total_seconds() <= wait * 1.2 + 10
        assert deliveries_enqueue_due() == 0
    assert delivery.last_answer.startswith("broken")
    assert len(delivery.last_answer) <= 500
    assert attempt(delivery).status == "failed"
    assert len({headers["webhook-id"] for headers, _ in receiver.requests}) == 1
    receiver.status = 204
    assert attempt(delivery_resend(delivery=delivery)).status == "delivered"
    assert WebhookEndpoint.objects.get().failing_since is None


def test_an_endpoint_may_ask_for_time(endpoint: Endpoint, receiver: Receiver) -> None:
    receiver.status, receiver.headers = 429, {"retry-after": "900"}
    delivery = attempt(endpoint_test(endpoint=endpoint[0]))
    assert (delivery.next_at - timezone.now()).total_seconds() > 890


@pytest.mark.parametrize("status", [301, 302, 307, 404])
def test_redirects_and_refusals_are_failures(endpoint: Endpoint, receiver: Receiver, status: int) -> None:
    receiver.status, receiver.headers = status, {"location": receiver.url}
    assert attempt(endpoint_test(endpoint=endpoint[0])).last_status == status
    assert len(receiver.requests) == 1


@pytest.mark.parametrize(("prompt", "status"), [(b"", None), (OK, 200)], ids=["head", "body"])
def test_an_endpoint_that_drips_holds_a_worker_no_longer_than_a_silent_one(
    prompt: bytes, status: int | None, endpoint: Endpoint, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "_TOTAL_S", 2.0)
    row, _ = endpoint
    with dripping(prompt, every=0.5) as server, lasting(1.9):
        opened = OpenEndpoints.parse([f"127.0.0.1:{server.port}"])
        settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, outgoing_allow=opened)
        WebhookEndpoint.objects.filter(pk=row.pk).update(url=server.url)
        delivery = endpoint_test(endpoint=row)
        delivery_attempt(delivery_id=delivery.pk)
    delivery.refresh_from_db()
    assert delivery.last_status == status
    # A status that was told in time counts, whatever becomes of the text behind it.
    if status is None:
        assert (delivery.status, delivery.last_answer) == ("pending", "timed out")
    else:
        assert delivery.status == "delivered"
        assert set(delivery.last_answer) == {"x"}


def test_what_is_no_public_address_is_not_reached(
    endpoint: Endpoint, receiver: Receiver, settings: Settings
) -> None:
    from controlplane.platform.environment import Environment

    settings.GRAFTWORK = Environment.from_env({})
    delivery = attempt(endpoint_test(endpoint=endpoint[0]))
    assert delivery.last_status is None
    assert "public internet" in delivery.last_answer
    assert receiver.requests == []


def test_two_workers_send_once_and_a_lost_one_is_replaced(endpoint: Endpoint, receiver: Receiver) -> None:
    delivery = endpoint_test(endpoint=endpoint[0])
    WebhookDelivery.objects.update(status="sending", attempts=1, next_at=timezone.now() + LEASE)
    delivery_attempt(delivery_id=delivery.pk)
    assert receiver.requests == []
    WebhookDelivery.objects.update(next_at=timezone.now() - dt.timedelta(seconds=1))
    assert deliveries_enqueue_due() == 1
    assert deliveries_enqueue_due() == 0, "it is in the queue already"
    delivery_attempt(delivery_id=delivery.pk)
    delivery.refresh_from_db()
    assert (delivery.status, delivery.attempts, len(receiver.requests)) == ("delivered", 2, 1)
    delivery_attempt(delivery_id=delivery.pk)
    assert len(receiver.requests) == 1


def test_an_endpoint_that_fails_for_long_is_disabled_and_others_are_told(
    tenant: Tenant, endpoint: Endpoint, receiver: Receiver
) -> None:
    other, _ = endpoint_create(tenant=tenant, url=receiver.url, events=["webhook.disabled"])
    receiver.status = 500
    failing = endpoint[0]
    delivery = attempt(endpoint_test(endpoint=failing))
    failing.refresh_from_db()
    assert (failing.disabled_at, failing.failing_since is None) == (None, False)
    WebhookEndpoint.objects.filter(pk=failing.pk).update(failing_since=timezone.now() - DISABLE_AFTER)
    attempt(delivery)
    failing.refresh_from_db()
    assert "5 days" in failing.disabled_reason
    assert AuditRecord.objects.latest("id").action == "webhook.disable"
    told = WebhookDelivery.objects.get(event__type="webhook.disabled")
    assert (told.endpoint, told.event.data["endpoint"]) == (other, failing.pk)
    count = len(receiver.requests)
    assert attempt(delivery).status == "failed"
    assert len(receiver.requests) == count, "a disabled endpoint is left alone"
    event_emit(tenant="acme", type="adapter.deleted", data={})
    assert not WebhookEvent.objects.filter(type="adapter.deleted").exists()
    enabled = endpoint_update(endpoint=failing, enabled=True)
    assert (enabled.disabled_at, enabled.failing_since) == (None, None)


def test_gone_means_gone(endpoint: Endpoint, receiver: Receiver) -> None:
    receiver.status = 410
    attempt(endpoint_test(endpoint=endpoint[0]))
    assert "410" in WebhookEndpoint.objects.get().disabled_reason


def test_an_event_goes_to_its_tenants_endpoints_that_chose_it(
    tenant: Tenant, other_tenant: Tenant, endpoint: Endpoint, receiver: Receiver
) -> None:
    narrow, _ = endpoint_create(tenant=tenant, url=receiver.url, events=["budget.alert"])
    theirs, _ = endpoint_create(tenant=other_tenant, url=receiver.url, events=["deployment.copy.added"])
    event_emit(tenant="acme", type="adapter.deleted", data={"adapter": "pirate"})
    assert [delivery.endpoint for delivery in WebhookDelivery.objects.all()] == [endpoint[0]]
    event_emit(tenant=None, type="deployment.copy.added", data={"base_model": "tiny", "copies": 1})
    copies = WebhookDelivery.objects.filter(event__type="deployment.copy.added")
    assert {(delivery.event.tenant_id, delivery.endpoint) for delivery in copies} == {
        ("acme", endpoint[0]),
        ("globex", theirs),
    }
    assert not narrow.deliveries.exists()
    with pytest.raises(KeyError, match=r"adapter\.eaten"):
        event_emit(tenant="acme", type="adapter.eaten", data={})


@pytest.mark.django_db(transaction=True)
def test_an_event_stands_with_its_change_or_not_at_all(endpoint: Endpoint) -> None:
    with pytest.raises(RuntimeError, match=r"transaction\.atomic"):
        event_emit(tenant="acme", type="adapter.deleted", data={})

    def fail() -> None:
        with transaction.atomic():
            event_emit(tenant="acme", type="adapter.deleted", data={})
            assert WebhookEvent.objects.exists()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not WebhookEvent.objects.exists()
    assert not connection.in_atomic_block


def test_old_events_are_forgotten_unless_they_wait(endpoint: Endpoint, receiver: Receiver) -> None:
    done, waiting = (endpoint_test(endpoint=endpoint[0]) for _ in range(2))
    attempt(done)
    WebhookEvent.objects.update(created_at=timezone.now() - dt.timedelta(days=31))
    fresh = endpoint_test(endpoint=endpoint[0])
    events_forget()
    assert set(WebhookDelivery.objects.values_list("pk", flat=True)) == {waiting.pk, fresh.pk}
    assert json.loads(receiver.requests[0][1])["type"] == "webhook.test"
