"""The outbox: an event is written with the change that it tells of, and sent after the commit."""

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
    """Tells the tenant's endpoints that chose this type; with None, every tenant's. Nobody chose it: no rows.

    Args:
        type: one of EVENTS.
        data: JSON without secrets, and without what the tenant may not read.

    Raises:
        RuntimeError: there is no transaction, so the event could stand without its change.
    """
    if type not in EVENTS:
        raise KeyError(f"{type} is no event: add it to controlplane.webhooks.events")
    if not connection.in_atomic_block:
        raise RuntimeError(f"emit {type} within the transaction of the change: transaction.atomic")
    endpoints = WebhookEndpoint.objects.filter(disabled_at=None)
    if tenant is not None:
        endpoints = endpoints.filter(tenant_id=tenant)
    # Chosen here, not by the database: SQLite cannot look into JSON lists by `contains`.
    chosen = [endpoint for endpoint in endpoints.only("tenant_id", "events") if type in endpoint.events]
    for slug in sorted({endpoint.tenant_id for endpoint in chosen}):
        own = [endpoint for endpoint in chosen if endpoint.tenant_id == slug]
        _write(slug, type, data, own)


def event_emit_test(*, endpoint: WebhookEndpoint) -> WebhookDelivery:
    """A `webhook.test` for one endpoint, whatever it chose."""
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
