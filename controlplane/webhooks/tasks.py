"""Celery's edge of webhooks."""

from __future__ import annotations

from celery import shared_task

from controlplane.platform.mail_server import MailServer
from controlplane.webhooks.deliveries import deliveries_enqueue_due, delivery_attempt, events_forget
from controlplane.webhooks.notices import NOTIFY_TASK, endpoint_notices_due, notice_send
from controlplane.webhooks.outbox import DELIVER_TASK


# Late acknowledgement: a worker that dies leaves the message, and the claim keeps a second run out.
@shared_task(name=DELIVER_TASK, acks_late=True)
def deliver(delivery_id: int) -> None:
    """Sends one delivery."""
    delivery_attempt(delivery_id=delivery_id)


@shared_task(name="webhooks.enqueue_due")
def enqueue_due() -> None:
    """Finds retries that are due, and what was lost."""
    deliveries_enqueue_due()


@shared_task(name="webhooks.forget", acks_late=True)
def forget() -> None:
    """Removes old events."""
    events_forget()


@shared_task(name=NOTIFY_TASK, acks_late=True)
def notify_disabled(endpoint_id: str) -> None:
    """Writes to a tenant's admins about one endpoint, unless that is done."""
    with MailServer() as server:
        notice_send(endpoint_id=endpoint_id, server=server)


@shared_task(name="webhooks.notify_due", acks_late=True)
def notify_due() -> None:
    """Writes what could not be sent, or enqueued, before."""
    with MailServer() as server:
        for endpoint_id in endpoint_notices_due():
            notice_send(endpoint_id=endpoint_id, server=server)
