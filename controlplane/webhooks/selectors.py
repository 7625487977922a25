"""Reads of webhooks."""

from __future__ import annotations

from django.db.models import QuerySet

from controlplane.platform.row_lookup import row_get
from controlplane.tenants.models import Tenant
from controlplane.webhooks.models import WebhookDelivery, WebhookEndpoint


def endpoint_list(*, tenant: Tenant) -> QuerySet[WebhookEndpoint]:
    """The tenant's endpoints, newest first."""
    return WebhookEndpoint.objects.filter(tenant=tenant)


def endpoint_get(*, tenant: Tenant, endpoint_id: str) -> WebhookEndpoint:
    """Raises NotFoundError, also for another tenant's."""
    rows = WebhookEndpoint.objects.filter(tenant=tenant, pk=endpoint_id)
    return row_get(rows, f"tenant {tenant.pk} has no webhook endpoint {endpoint_id[:64]!r}")


def delivery_list(*, endpoint: WebhookEndpoint) -> QuerySet[WebhookDelivery]:
    """The endpoint's deliveries, newest first."""
    return WebhookDelivery.objects.filter(endpoint=endpoint).select_related("event").order_by("-id")


def delivery_get(*, endpoint: WebhookEndpoint, delivery_id: int) -> WebhookDelivery:
    """Raises NotFoundError, also for another endpoint's."""
    deliveries = WebhookDelivery.objects.filter(endpoint=endpoint).select_related("event", "endpoint")
    rows = deliveries.filter(pk=delivery_id) if delivery_id < 1 << 63 else deliveries.none()
    return row_get(rows, f"webhook endpoint {endpoint.pk} has no delivery {delivery_id}")
