"""Creates, changes, rotates, tests and removes webhook endpoints."""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final

from django.db import transaction
from django.utils import timezone

from controlplane.errors import ConflictError, InvalidInputError
from controlplane.platform.audit.services import audit_record
from controlplane.platform.audit.snapshot import locked_snapshot, snapshot
from controlplane.platform.http.outgoing import check_outgoing_url
from controlplane.platform.queue import enqueue
from controlplane.platform.sealing import seal
from controlplane.tenants.models import Tenant, User
from controlplane.webhooks.events import CHOOSABLE
from controlplane.webhooks.models import WebhookDelivery, WebhookEndpoint
from controlplane.webhooks.outbox import DELIVER_TASK, event_emit_test
from controlplane.webhooks.signing import new_secret

MOST_ENDPOINTS: Final = 20
OVERLAP: Final = dt.timedelta(days=1)
LONGEST_OVERLAP: Final = dt.timedelta(days=30)
_MACHINERY: Final = ("failing_since", "notify_at", "notify_attempts", "notified")


@transaction.atomic
def endpoint_create(
    *, tenant: Tenant, url: str, events: Sequence[str], description: str = "", created_by: User | None = None
) -> tuple[WebhookEndpoint, str]:
    """Create an endpoint; return it with its secret, which cannot be read again.

    Raises:
        InvalidInputError: the URL may not be called, or an event is unknown.
        ConflictError: the tenant has MOST_ENDPOINTS.
    """
    endpoint = WebhookEndpoint(
        pk=f"ep_{secrets.token_hex(8)}",
        tenant=tenant,
        url=_check_url(url),
        events=_check_events(events),
        description=_check_description(description),
        created_by=created_by,
    )
    # The lock makes concurrent creations count each other.
    Tenant.objects.select_for_update().get(pk=tenant.pk)
    if WebhookEndpoint.objects.filter(tenant=tenant).count() >= MOST_ENDPOINTS:
        raise ConflictError(f"a tenant can have at most {MOST_ENDPOINTS} webhook endpoints: delete one first")
    secret = new_secret()
    endpoint.secret = seal(secret, place=endpoint.sealing_place)
    endpoint.save(force_insert=True)
    audit_record(tenant=tenant.pk, action="webhook.create", target=endpoint, after=snapshot(endpoint))
    return endpoint, secret


@transaction.atomic
def endpoint_update(*, endpoint: WebhookEndpoint, **changes: Any) -> WebhookEndpoint:
    """Change an endpoint's URL, events, description or state.

    Args:
        changes: some of `url`, `events`, `description`, and `enabled`: False disables it, True enables it
            again. Deliveries due while it was disabled have failed, and can be resent by hand.

    Raises:
        InvalidInputError: see `endpoint_create`.
    """
    before = locked_snapshot(endpoint)
    endpoint.refresh_from_db()
    checks: dict[str, Callable[[Any], Any]] = {
        "url": _check_url,
        "events": _check_events,
        "description": _check_description,
    }
    for name, value in changes.items():
        if name != "enabled":
            setattr(endpoint, name, checks[name](value))
    if changes.get("enabled") is True and endpoint.disabled_at is not None:
        endpoint.disabled_at, endpoint.disabled_reason, endpoint.failing_since = None, "", None
        endpoint.notify_at = None
    if changes.get("enabled") is False and endpoint.disabled_at is None:
        endpoint.disabled_at, endpoint.disabled_reason = timezone.now(), "disabled manually"
    endpoint.save()
    _record(endpoint, "webhook.update", before)
    return endpoint


@transaction.atomic
def endpoint_rotate(
    *, endpoint: WebhookEndpoint, overlap: dt.timedelta = OVERLAP
) -> tuple[WebhookEndpoint, str]:
    """Rotate the secret and return the new one. During `overlap` requests carry signatures by both.

    Raises:
        InvalidInputError: `overlap` is negative or longer than LONGEST_OVERLAP.
    """
    if not dt.timedelta(0) <= overlap <= LONGEST_OVERLAP:
        raise InvalidInputError(
            f"the overlap must be from 0 to {LONGEST_OVERLAP.days * 24} hours", field="overlap_hours"
        )
    before = locked_snapshot(endpoint)
    endpoint.refresh_from_db()
    endpoint.old_secret = endpoint.secret if overlap else ""
    endpoint.old_secret_until = timezone.now() + overlap if overlap else None
    secret = new_secret()
    endpoint.secret = seal(secret, place=endpoint.sealing_place)
    endpoint.save(update_fields=["secret", "old_secret", "old_secret_until"])
    until, now = endpoint.old_secret_until, timezone.now()
    before = {"old_secret_until": before["old_secret_until"]}
    after = {"old_secret_until": until, "secret": "new", "rotated_at": now}
    audit_record(
        tenant=endpoint.tenant_id, action="webhook.rotate", target=endpoint, before=before, after=after
    )
    return endpoint, secret


@transaction.atomic
def endpoint_delete(*, endpoint: WebhookEndpoint) -> None:
    """Remove an endpoint with its deliveries."""
    before = snapshot(endpoint)
    audit_record(tenant=endpoint.tenant_id, action="webhook.delete", target=endpoint, before=before)
    endpoint.delete()


@transaction.atomic
def endpoint_test(*, endpoint: WebhookEndpoint) -> WebhookDelivery:
    """Send a `webhook.test` event to the endpoint.

    Raises:
        ConflictError: the endpoint is disabled.
    """
    if endpoint.disabled_at is not None:
        raise ConflictError("the endpoint is disabled: enable it first")
    delivery = event_emit_test(endpoint=endpoint)
    audit_record(tenant=endpoint.tenant_id, action="webhook.test", target=endpoint)
    return delivery


@transaction.atomic
def delivery_resend(*, delivery: WebhookDelivery) -> WebhookDelivery:
    """Send a delivery again at once, under the same `webhook-id` and with a full series of attempts.

    Raises:
        ConflictError: its endpoint is disabled, or it is being sent right now.
    """
    endpoint = delivery.endpoint
    if endpoint.disabled_at is not None:
        raise ConflictError("the endpoint is disabled: enable it first")
    idle = WebhookDelivery.objects.filter(pk=delivery.pk).exclude(status=WebhookDelivery.Status.SENDING)
    values = {"status": WebhookDelivery.Status.PENDING, "attempts": 0, "queued_at": None}
    if not idle.update(next_at=timezone.now(), **values):
        raise ConflictError("it is being sent right now")
    enqueue(DELIVER_TASK, delivery_id=delivery.pk)
    told = {"delivery": delivery.pk, "event": delivery.event_id}
    audit_record(tenant=endpoint.tenant_id, action="webhook.resend", target=endpoint, after=told)
    delivery.refresh_from_db()
    return delivery


def _record(endpoint: WebhookEndpoint, action: str, before: dict[str, Any]) -> None:
    after = snapshot(endpoint)
    for name in _MACHINERY:
        del before[name], after[name]
    audit_record(tenant=endpoint.tenant_id, action=action, target=endpoint, before=before, after=after)


def _check_url(url: str) -> str:
    if len(url) > 1000:
        raise InvalidInputError("url must have at most 1000 characters", field="url")
    return check_outgoing_url(url.strip(), field="url")


def _check_events(events: Sequence[str]) -> list[str]:
    wanted = sorted(set(events))
    if not wanted or set(wanted) - set(CHOOSABLE):
        raise InvalidInputError(f"events must be one or more of {', '.join(CHOOSABLE)}", field="events")
    return wanted


def _check_description(text: str) -> str:
    if len(text) > 200:
        raise InvalidInputError("description must have at most 200 characters", field="description")
    return text.strip()
