"""Sends deliveries, retries them, and disables endpoints that keep failing."""

from __future__ import annotations

import datetime as dt
import logging
import random
from typing import Any, Final

from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from controlplane.platform.audit.services import audit_record
from controlplane.platform.queue import enqueue
from controlplane.webhooks.events import DISABLED
from controlplane.webhooks.models import WebhookDelivery, WebhookEndpoint, WebhookEvent
from controlplane.webhooks.notices import NOTIFY_TASK
from controlplane.webhooks.outbox import DELIVER_TASK, event_emit
from controlplane.webhooks.sending import Outcome, send

logger = logging.getLogger(__name__)

WAITS_S: Final = (5, 30, 120, 600, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
"""Seconds between attempts, each plus up to a fifth at random: three and a half days in all."""
LEASE: Final = dt.timedelta(minutes=2)
DISABLE_AFTER: Final = dt.timedelta(days=5)
KEEP: Final = dt.timedelta(days=30)
_REQUEUE: Final = dt.timedelta(minutes=1)
_GONE: Final = 410

Status = WebhookDelivery.Status


def delivery_attempt(*, delivery_id: int) -> None:
    """Send one delivery if it is due and no other worker has claimed it.

    Delivery is at least once: if a worker dies after sending, another one sends again. The attempt count in
    the claim keeps a late worker from writing.
    """
    now = timezone.now()
    claimed = WebhookDelivery.objects.filter(pk=delivery_id, status=Status.PENDING, next_at__lte=now).update(
        status=Status.SENDING, attempts=F("attempts") + 1, next_at=now + LEASE
    )
    delivery = WebhookDelivery.objects.select_related("event", "endpoint").filter(pk=delivery_id).first()
    if not claimed or delivery is None:
        return
    if delivery.endpoint.disabled_at is not None:
        _settle(delivery, status=Status.FAILED, last_answer="the endpoint is disabled")
        return
    outcome = send(delivery.event, delivery.endpoint)
    with transaction.atomic():
        _conclude(delivery, outcome)


def deliveries_enqueue_due() -> int:
    """Enqueue due deliveries: retries, and those whose message or worker was lost; return how many."""
    now = timezone.now()
    WebhookDelivery.objects.filter(status=Status.SENDING, next_at__lt=now).update(
        status=Status.PENDING, queued_at=None
    )
    due = WebhookDelivery.objects.filter(status=Status.PENDING, next_at__lte=now)
    due = due.filter(Q(queued_at=None) | Q(queued_at__lt=now - _REQUEUE))
    ids = list(due.order_by("next_at").values_list("pk", flat=True)[:1000])
    WebhookDelivery.objects.filter(pk__in=ids).update(queued_at=now)
    for delivery_id in ids:
        enqueue(DELIVER_TASK, delivery_id=delivery_id)
    return len(ids)


def events_forget() -> int:
    """Remove old events without waiting deliveries; return how many rows were removed."""
    waiting = (Status.PENDING, Status.SENDING)
    old = WebhookEvent.objects.filter(created_at__lt=timezone.now() - KEEP)
    return old.exclude(deliveries__status__in=waiting).delete()[0]


def _conclude(delivery: WebhookDelivery, outcome: Outcome) -> None:
    result: dict[str, Any] = {
        "last_at": timezone.now(),
        "last_status": outcome.status,
        "last_answer": outcome.answer,
        "last_ms": outcome.duration_ms,
    }
    endpoint = WebhookEndpoint.objects.filter(pk=delivery.endpoint_id)
    if outcome.is_delivered:
        if _settle(delivery, status=Status.DELIVERED, **result):
            endpoint.exclude(failing_since=None).update(failing_since=None)
        return
    if delivery.attempts <= len(WAITS_S):
        wait = max(_wait(delivery.attempts), outcome.retry_after)
        next_at = timezone.now() + dt.timedelta(seconds=wait)
        settled = _settle(delivery, status=Status.PENDING, next_at=next_at, queued_at=None, **result)
    else:
        settled = _settle(delivery, status=Status.FAILED, **result)
    if settled:
        endpoint.filter(failing_since=None).update(failing_since=timezone.now())
        _disable_if_hopeless(delivery.endpoint_id, outcome)


def _wait(attempts: int) -> int:
    base = WAITS_S[attempts - 1]
    return base + round(random.uniform(0, base / 5))  # noqa: S311  # spreads load, no secret


def _settle(delivery: WebhookDelivery, **values: Any) -> bool:
    claim = {"status": Status.SENDING, "attempts": delivery.attempts}
    return bool(WebhookDelivery.objects.filter(pk=delivery.pk, **claim).update(**values))


def _disable_if_hopeless(endpoint_id: str, outcome: Outcome) -> None:
    endpoint = WebhookEndpoint.objects.select_for_update().filter(pk=endpoint_id, disabled_at=None).first()
    if endpoint is None or endpoint.failing_since is None:
        return
    now = timezone.now()
    if outcome.status == _GONE:
        reason = "it returned 410 Gone"
    elif now - endpoint.failing_since >= DISABLE_AFTER:
        reason = f"nothing was delivered for {DISABLE_AFTER.days} days"
    else:
        return
    endpoint.disabled_at, endpoint.disabled_reason = now, reason
    endpoint.notify_at, endpoint.notify_attempts, endpoint.notified = now, 0, []
    changed = ("disabled_at", "disabled_reason", "notify_at", "notify_attempts", "notified")
    endpoint.save(update_fields=changed)
    enqueue(NOTIFY_TASK, endpoint_id=endpoint.pk)
    logger.warning("webhook endpoint %s of %s was disabled: %s", endpoint.pk, endpoint.tenant_id, reason)
    data = {"endpoint": endpoint.pk, "url": endpoint.url, "reason": reason}
    event_emit(tenant=endpoint.tenant_id, type=DISABLED, data=data)
    audit_record(tenant=endpoint.tenant_id, action="webhook.disable", target=endpoint, after=data)
