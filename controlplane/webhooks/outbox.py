"""The outbox: an event is written in the transaction of its change, and sent after the commit."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Final

from django.db import connection

from controlplane.platform.queue import enqueue
from controlplane.webhooks.events import EVENTS, TEST
from controlplane.webhooks.models import WebhookDelivery, WebhookEndpoint, WebhookEvent

DELIVER_TASK: Final = "webhooks.deliver"


def event_emit(*, tenant: str | None, type: str, data: Mapping[str, Any]) -> None:
    """Write an event for the tenant's endpoints that chose its type; for every tenant's if None.

    Args:
        type: one of EVENTS.
        data: JSON without secrets, and without what the tenant may not read.

    Raises:
        RuntimeError: there is no transaction, so the event could be saved without its change.
    """
    if type not in EVENTS:
        raise KeyError(f"{type} is not an event type: add it to controlplane.webhooks.events")
    if not connection.in_atomic_block:
        raise RuntimeError(f"emit {type} inside the transaction of the change: use transaction.atomic")
    endpoints = WebhookEndpoint.objects.filter(disabled_at=None)
    if tenant is not None:
        endpoints = endpoints.filter(tenant_id=tenant)
    # Filtered in Python: SQLite has no `contains` for JSON lists.
    subscribed = [endpoint for endpoint in endpoints.only("tenant_id", "events") if type in endpoint.events]
    for slug in sorted({endpoint.tenant_id for endpoint in subscribed}):
        of_tenant = [endpoint for endpoint in subscribed if endpoint.tenant_id == slug]
        _write(slug, type, data, of_tenant)


def event_emit_test(*, endpoint: WebhookEndpoint) -> WebhookDelivery:
    """Write a `webhook.test` event for one endpoint, whatever types it chose."""
    data = {"endpoint": endpoint.pk, "text": "This is a test."}
    return _write(endpoint.tenant_id, TEST, data, [endpoint])[0]


def _write(
    tenant: str, type: str, data: Mapping[str, Any], endpoints: Iterable[WebhookEndpoint]
) -> list[WebhookDelivery]:
    event = WebhookEvent.objects.create(
        pk=f"msg_{uuid.uuid4().hex}", tenant_id=tenant, type=type, data=dict(data)
    )
    deliveries = [WebhookDelivery.objects.create(event=event, endpoint=endpoint) for endpoint in endpoints]
    for delivery in deliveries:
        enqueue(DELIVER_TASK, delivery_id=delivery.pk)
    return deliveries
