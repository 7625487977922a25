"""Owners and admins are written to when an endpoint is given up."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from django.core import mail
from django.utils import timezone
from pytest_django import Settings

from controlplane.platform.mail_notices import ATTEMPTS, RETRY_AFTER
from controlplane.platform.mail_server import MailServer
from controlplane.tenants.members.services import invitation_create
from controlplane.tenants.members.tasks import send_invitations
from controlplane.tenants.models import Tenant, User
from controlplane.tenants.roles import Role
from controlplane.tenants.services import tenant_create, user_create
from controlplane.webhooks.deliveries import delivery_attempt
from controlplane.webhooks.models import WebhookDelivery, WebhookEndpoint
from controlplane.webhooks.notices import endpoint_notices_due, notice_send
from controlplane.webhooks.services import endpoint_create, endpoint_test, endpoint_update
from controlplane.webhooks.tasks import notify_due
from tests.controlplane.conftest import Start
from tests.controlplane.mail_receiver import MailReceiver, mail_receiver
from tests.controlplane.webhooks.conftest import Receiver
from tests.waiting import eventually

pytestmark = pytest.mark.django_db


@pytest.fixture
def people(tenant: Tenant, other_tenant: Tenant) -> None:
    for role in Role:
        user_create(email=f"{role}@acme.test", password="long-enough-7", tenant=tenant, role=role)
    user_create(email="owner@globex.test", password="long-enough-7", tenant=other_tenant)
    user_create(email="gone@acme.test", password="long-enough-7", tenant=tenant, role=Role.OWNER)
    User.objects.filter(email="gone@acme.test").update(is_active=False)


def send(endpoint_id: str) -> bool:
    with MailServer() as server:
        return notice_send(endpoint_id=endpoint_id, server=server)
    return False


@contextmanager
def smtp(settings: Settings) -> Iterator[MailReceiver]:
    """A mail server that this process writes to."""
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    with mail_receiver() as server:
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", server.port
        yield server


def given_up(receiver: Receiver, endpoint: WebhookEndpoint) -> None:
    """The endpoint answers 410 to a delivery."""
    receiver.status = 410
    delivery_attempt(delivery_id=endpoint_test(endpoint=endpoint).pk)


@pytest.mark.usefixtures("people")
def test_owners_and_admins_are_told_and_nobody_else(tenant: Tenant, receiver: Receiver) -> None:
    endpoint, _ = endpoint_create(
        tenant=tenant, url=f"{receiver.url}/T01/B02?token=hush", events=["adapter.deleted"]
    )
    assert endpoint_notices_due() == []
    given_up(receiver, endpoint)
    assert endpoint_notices_due() == [endpoint.pk]
    assert send(endpoint.pk)
    assert [message.to for message in mail.outbox] == [["admin@acme.test"], ["owner@acme.test"]]
    message = mail.outbox[0]
    assert message.subject == "A webhook of Acme on Graftwork is disabled"
    body = str(message.body)
    assert "410 Gone" in body
    parts = urlsplit(receiver.url)
    assert f"{endpoint.pk} at http://{parts.netloc}\n" in body
    assert "hush" not in body
    assert "T01" not in body, "Slack's secret is the path"
    assert f"/t/acme/webhooks/{endpoint.pk}/" in body


@pytest.mark.usefixtures("people")
def test_one_notice_for_each_time(tenant: Tenant, receiver: Receiver) -> None:
    endpoint, _ = endpoint_create(tenant=tenant, url=receiver.url, events=["adapter.deleted"])
    given_up(receiver, endpoint)
    send(endpoint.pk)
    assert not send(endpoint.pk)
    assert endpoint_notices_due() == []
    assert len(mail.outbox) == 2
    given_up(receiver, endpoint_update(endpoint=endpoint, enabled=True))
    send(endpoint.pk)
    assert len(mail.outbox) == 4


@pytest.mark.usefixtures("people")
def test_who_disables_it_by_hand_or_enables_it_in_time_needs_no_mail(
    tenant: Tenant, receiver: Receiver
) -> None:
    endpoint, _ = endpoint_create(tenant=tenant, url=receiver.url, events=["adapter.deleted"])
    endpoint_update(endpoint=endpoint, enabled=False)
    assert endpoint_notices_due() == []
    given_up(receiver, endpoint_update(endpoint=endpoint, enabled=True))
    endpoint_update(endpoint=endpoint, enabled=True)
    assert endpoint_notices_due() == []
    assert not send(endpoint.pk)
    assert mail.outbox == []


@pytest.mark.usefixtures("people")
def test_a_mail_server_that_is_away_is_tried_again(
    tenant: Tenant, receiver: Receiver, settings: Settings
) -> None:
    endpoint, _ = endpoint_create(tenant=tenant, url=receiver.url, events=["adapter.deleted"])
    given_up(receiver, endpoint)
    with smtp(settings) as server:
        server.refuses = True
        assert not send(endpoint.pk)
        assert endpoint_notices_due() == [], "not before the next attempt is due"
        kept = WebhookEndpoint.objects.get()
        assert kept.notify_at is not None
        assert kept.notify_at - timezone.now() > RETRY_AFTER - dt.timedelta(minutes=1)
        WebhookEndpoint.objects.update(notify_at=timezone.now())
        server.refuses = False
        assert send(endpoint.pk)
        assert [recipient for recipient, _ in server.messages] == ["admin@acme.test", "owner@acme.test"]


def again() -> None:
    """The next attempt is due."""
    WebhookEndpoint.objects.exclude(notify_at=None).update(notify_at=timezone.now())


@pytest.mark.usefixtures("people")
def test_a_refused_address_holds_up_nobody_and_repeats_nothing(
    tenant: Tenant, receiver: Receiver, settings: Settings
) -> None:
    user_create(email="b@acme.test", password="long-enough-7", tenant=tenant, role=Role.ADMIN)
    endpoint, _ = endpoint_create(tenant=tenant, url=receiver.url, events=["adapter.deleted"])
    given_up(receiver, endpoint)
    with smtp(settings) as server:
        server.answers["b@acme.test"] = "550 no such user"
        assert send(endpoint.pk)
        assert [recipient for recipient, _ in server.messages] == ["admin@acme.test", "owner@acme.test"]
        again()
        notify_due()
        assert len(server.messages) == 2
    assert endpoint_notices_due() == []


@pytest.mark.usefixtures("people")
def test_who_is_told_to_wait_is_written_to_alone(
    tenant: Tenant, receiver: Receiver, settings: Settings
) -> None:
    endpoint, _ = endpoint_create(tenant=tenant, url=receiver.url, events=["adapter.deleted"])
    given_up(receiver, endpoint)
    with smtp(settings) as server:
        server.answers["admin@acme.test"] = "451 greylisted"
        assert not send(endpoint.pk)
        again()
        server.answers.clear()
        assert send(endpoint.pk)
        assert [recipient for recipient, _ in server.messages] == ["owner@acme.test", "admin@acme.test"]
    given_up(receiver, endpoint_update(endpoint=endpoint, enabled=True))
    assert WebhookEndpoint.objects.get().notified == []


@pytest.mark.usefixtures("people")
def test_attempts_grow_rarer_and_end(tenant: Tenant, receiver: Receiver, settings: Settings) -> None:
    endpoint, _ = endpoint_create(tenant=tenant, url=receiver.url, events=["adapter.deleted"])
    given_up(receiver, endpoint)
    waits: list[int | None] = []
    with smtp(settings) as server:
        server.refuses = True
        while endpoint_notices_due() and len(waits) <= ATTEMPTS:
            notify_due()
            next_at = WebhookEndpoint.objects.get().notify_at
            waits.append(round((next_at - timezone.now()) / RETRY_AFTER) if next_at else None)
            again()
    assert waits == [2**attempt for attempt in range(ATTEMPTS - 1)] + [None]


@pytest.mark.usefixtures("people")
def test_a_round_ends_at_the_first_failure_to_connect(
    tenant: Tenant, receiver: Receiver, settings: Settings
) -> None:
    settings.EMAIL_TIMEOUT = 0.5
    for number in range(3):
        endpoint, _ = endpoint_create(tenant=tenant, url=receiver.url, events=["adapter.deleted"])
        given_up(receiver, endpoint)
        invitation_create(tenant=tenant, email=f"{number}@acme.test", role=Role.VIEWER)
    with smtp(settings) as server:
        server.is_silent = True
        notify_due()
        assert server.connections == 1
        send_invitations()
        assert server.connections == 2
        server.is_silent = False
        server.answers["1@acme.test"] = "550 no such user"
        notify_due()
        send_invitations()
    told = [recipient for recipient, _ in server.messages]
    assert told == ["admin@acme.test", "owner@acme.test"] * 2 + ["2@acme.test"], "the first ones wait"
    assert server.connections == 4


def wait_for(condition: Callable[[], bool]) -> None:
    eventually(condition, seconds=90, message=lambda: list(WebhookDelivery.objects.values()))


@pytest.mark.costly("starts a Celery worker")
@pytest.mark.django_db(transaction=True)
def test_a_celery_worker_sends_it_by_smtp(start: Start, receiver: Receiver) -> None:
    tenant = tenant_create(slug="acme", name="Acme")
    user_create(email="owner@acme.test", password="long-enough-7", tenant=tenant)
    endpoint, _ = endpoint_create(tenant=tenant, url=receiver.url, events=["adapter.deleted"])
    with mail_receiver() as server:
        receiver.status = 410
        start(
            "-m",
            "celery",
            "-A",
            "controlplane.celery",
            "worker",
            "--pool",
            "solo",
            GRAFTWORK_OUTGOING_ALLOW=f"127.0.0.1:{receiver.port}",
            GRAFTWORK_EMAIL_URL=f"smtp://127.0.0.1:{server.port}",
            GRAFTWORK_EMAIL_FROM="hooks@graft.test",
        )
        endpoint_test(endpoint=endpoint)
        wait_for(lambda: bool(server.messages))
    ((recipient, message),) = server.messages
    assert recipient == "owner@acme.test"
    assert message["From"] == "hooks@graft.test"
    assert message["Subject"] == "A webhook of Acme on Graftwork is disabled"
    assert endpoint.pk in message.get_content()
    wait_for(lambda: WebhookEndpoint.objects.get().notify_at is None)
