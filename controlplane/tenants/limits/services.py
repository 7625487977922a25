"""Changes limits and publishes them in one transaction."""

from __future__ import annotations

from typing import Any, Final

from django.db import transaction
from django.utils import timezone

from contracts.limits import MAX_AMOUNT, BudgetPeriod, Limit, LimitKind, LimitsRoute
from controlplane.errors import InvalidInputError, OutOfRangeError
from controlplane.platform.audit.services import audit_record
from controlplane.platform.audit.snapshot import snapshot
from controlplane.platform.queue import enqueue
from controlplane.routes.selectors import route_paths
from controlplane.routes.services import route_lock, route_remove, route_set
from controlplane.tenants.access import Access, check_key_grant
from controlplane.tenants.limits.models import ScopeLimits
from controlplane.tenants.limits.selectors import key_limits_get, tenant_limits_get
from controlplane.tenants.models import ApiKey, Tenant

PUBLISH_BUDGETS: Final = "billing.publish_budgets"
"""Name of the task, which beat repeats."""
_DEFAULTS: Final[dict[str, Any]] = {"budget_period": ScopeLimits.Period.MONTH, "prepaid_stop": False}
"""Defaults of omitted fields that are not null."""
_BOUNDS: Final[dict[str, tuple[float, float]]] = {
    **dict.fromkeys(ScopeLimits.AMOUNTS, (0, MAX_AMOUNT)),
    "budget_alert_percent": (1, 100),
    "priority": (0, 9),
    "weight": (0.01, 100),
}
_ALERT: Final = ("budget_nano", "budget_period", "budget_alert_percent")
"""Fields that determine when the budget alert is sent."""


@transaction.atomic
def tenant_limits_set(*, tenant: Tenant, **values: Any) -> ScopeLimits:
    """Replace the tenant's limits by `values` (ScopeLimits.FIELDS); omitted ones are unlimited.

    Higher limits of keys stay without effect. An omitted `prepaid_stop` stays unchanged, since a change of
    rates must not grant credit.

    Raises:
        InvalidInputError: a value is out of its bounds.
    """
    route_lock()
    row = tenant_limits_get(tenant=tenant)
    values.setdefault("prepaid_stop", row.prepaid_stop)
    return _set(row, values)


@transaction.atomic
def key_limits_set(*, api_key: ApiKey, by: Access | None = None, **values: Any) -> ScopeLimits:
    """Replace the key's limits by `values`; each must lie within its tenant's.

    Raises:
        ForbiddenError: `by` lacks a permission of the key's.
        InvalidInputError: the key is revoked or expired, or a value out of its bounds or above the tenant's.
    """
    check_key_grant(by, api_key)
    # The lock keeps the tenant's limits from changing after they are read here.
    route_lock()
    if not api_key.is_live:
        raise InvalidInputError("the key is revoked or expired: choose an active key")
    tenant = tenant_limits_get(tenant=api_key.tenant)
    for name in ScopeLimits.AMOUNTS:
        most, value = getattr(tenant, name), values.get(name)
        if name == "budget_nano" and values.get("budget_period", "month") != tenant.budget_period:
            continue  # budgets of different periods are not comparable
        if most is not None and value is not None and value > most:
            text = f"{name} cannot exceed the tenant's limit of {most}"
            raise OutOfRangeError(text, field=name, low=0, high=most)
    if (priority := values.get("priority")) is not None and priority < (tenant.priority or 0):
        text = f"priority must be {tenant.priority} (the tenant's) or a higher number"
        raise OutOfRangeError(text, field="priority", low=tenant.priority or 0, high=9)
    for name in ("weight", "prepaid_stop"):
        if values.get(name):
            raise InvalidInputError(f"{name} can only be set on the tenant, by staff", field=name)
    return _set(key_limits_get(api_key=api_key), values)


@transaction.atomic
def prepaid_stop_set(*, tenant: Tenant, stops: bool) -> ScopeLimits:
    """Set whether the tenant's calls stop when its prepaid balance and credits are used up.

    Its other limits stay.
    """
    route_lock()
    row = tenant_limits_get(tenant=tenant)
    values = {name: getattr(row, name) for name in ScopeLimits.FIELDS}
    return _set(row, values | {"prepaid_stop": stops})


def key_limits_unroute_dead() -> int:
    """Remove limits of revoked and expired keys from the route table; return how many."""
    now = timezone.now()
    dead = ScopeLimits.objects.filter(api_key__revoked_at__isnull=False)
    dead |= ScopeLimits.objects.filter(api_key__expires_at__lte=now)
    stale = sorted(route_paths(paths={f"limits/{row.scope}" for row in dead}))
    for path in stale:
        route_remove(path=path)
    return len(stale)


def _set(row: ScopeLimits, values: dict[str, Any]) -> ScopeLimits:
    if unknown := sorted(set(values) - set(ScopeLimits.FIELDS)):
        raise InvalidInputError(f"unknown limit {unknown[0]!r}", field=unknown[0])
    for name, (low, high) in _BOUNDS.items():
        value = values.get(name)
        if value is not None and not low <= value <= high:
            text = f"{name} must be from {low} to {high}, or null for none"
            raise OutOfRangeError(text, field=name, low=low, high=high)
    before = snapshot(row) if row.pk else None
    alert = [getattr(row, name) for name in _ALERT]
    values = {name: values[name] for name in values if values[name] is not None}
    for name in ScopeLimits.FIELDS:
        setattr(row, name, values.get(name, _DEFAULTS.get(name)))
    if row.budget_period not in ScopeLimits.Period.values:
        raise InvalidInputError("budget_period must be day or month", field="budget_period")
    if alert != [getattr(row, name) for name in _ALERT]:
        row.budget_alerted = ""  # sent once a period, and again after a change of its level
    row.save()
    _publish(row, stopped=bool(before and before["prepaid_stop"]))
    _record(row, before)
    return row


def _record(row: ScopeLimits, before: dict[str, Any] | None) -> None:
    after = {name: value for name, value in snapshot(row).items() if name != "changed_at"}
    if before is not None:
        del before["changed_at"]
    audit_record(tenant=row.tenant_id, action="limits.set", target=row, before=before, after=after)


def _publish(row: ScopeLimits, *, stopped: bool = False) -> None:
    amounts: dict[LimitKind, int | None] = {
        "requests": row.requests_per_minute,
        "tokens": row.tokens_per_minute,
        "concurrency": row.concurrency,
    }
    limits = [Limit(kind, amount) for kind, amount in amounts.items() if amount is not None]
    if row.budget_nano is not None:
        period: BudgetPeriod = "day" if row.budget_period == ScopeLimits.Period.DAY else "month"
        limits.append(Limit("budget", row.budget_nano, period=period, alert=row.budget_alert_nano))
    if row.prepaid_stop:
        limits.append(Limit("prepaid", MAX_AMOUNT))
    if stopped or row.prepaid_stop or row.budget_nano is not None:
        # Publish at once: gateways grant no part of a budget before they know the spending, and the prepaid
        # balance leaves Redis together with its limit.
        enqueue(PUBLISH_BUDGETS, tenant=row.tenant_id)
    path = f"limits/{row.scope}"
    if limits or row.priority is not None or row.weight is not None:
        route_set(path=path, entry=LimitsRoute(tuple(limits), row.priority, row.weight))
    else:
        route_remove(path=path)
