"""Creates, changes and deletes alarms."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from typing import Any, Final

from django.db import IntegrityError, transaction
from django.utils import timezone

from controlplane.adapters.selectors import adapter_get
from controlplane.deployments.selectors import deployment_get
from controlplane.errors import ConflictError, InvalidInputError, NotFoundError
from controlplane.monitoring.models import Alarm, Comparison, Metric, MissingData, State
from controlplane.platform.audit.services import audit_record
from controlplane.platform.audit.snapshot import locked_snapshot, snapshot
from controlplane.tenants.models import Tenant, User

MOST_ALARMS: Final = 50
"""Most alarms of one tenant. Their evaluation reads the tenant's events once for each length of period."""
MOST_OPERATOR_ALARMS: Final = 200
PERIODS: Final = (60, 300, 900, 3600)
"""Selectable lengths of a period in seconds."""
LONGEST_WINDOW: Final = 6 * 3600
"""Most seconds of all evaluation periods together, since each evaluation reads their events."""
LAG: Final = dt.timedelta(seconds=30)
"""Delay of an evaluation after the end of its last period, in which usage events arrive."""
DEFAULT_NOTIFY_ON: Final = (State.ALARM.value, State.OK.value)
_PROGRESS: Final = ("state", "state_reason", "state_at", "evaluated_to", "next_at")
_REFERENCES: Final = ("adapter", "deployment", "webhook_tenant")


@transaction.atomic
def alarm_create(*, tenant: Tenant | None, created_by: User | None = None, **values: Any) -> Alarm:
    """Create an alarm in the state INSUFFICIENT_DATA; its first evaluation follows within a minute.

    Args:
        tenant: owner; None for the operator.
        values: fields of `Alarm`. `adapter` is a name, for the operator `<tenant>/<name>`; `deployment` and
            `webhook_tenant` are names of the operator's alarms; "" or None for none.

    Raises:
        InvalidInputError: a value is out of its bounds, or a tenant names what only the operator can watch.
        ConflictError: the name exists already, or there are too many alarms.
        NotFoundError: there is no such adapter, deployment or tenant.
    """
    alarm = Alarm(tenant=tenant, created_by=created_by, notify_on=list(DEFAULT_NOTIFY_ON))
    most = MOST_OPERATOR_ALARMS if tenant is None else MOST_ALARMS
    if tenant is not None:
        # The lock makes concurrent creations count each other.
        Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)
    if Alarm.objects.filter(tenant=tenant).count() >= most:
        raise ConflictError(f"there can be at most {most} alarms: delete one first")
    _set(alarm, values)
    alarm.next_at = timezone.now() if alarm.enabled else None
    _save(alarm)
    audit_record(tenant=_log(alarm), action="alarm.create", target=alarm, after=_recorded(snapshot(alarm)))
    return alarm


@transaction.atomic
def alarm_update(*, alarm: Alarm, **changes: Any) -> Alarm:
    """Change the given fields; see `alarm_create`. A new rule is evaluated at once.

    Raises as `alarm_create` does.
    """
    before = locked_snapshot(alarm)
    alarm.refresh_from_db()
    _set(alarm, changes)
    alarm.evaluated_to, alarm.next_at = None, timezone.now() if alarm.enabled else None
    _save(alarm)
    audit_record(
        tenant=_log(alarm),
        action="alarm.update",
        target=alarm,
        before=_recorded(before),
        after=_recorded(snapshot(alarm)),
    )
    return alarm


@transaction.atomic
def alarm_delete(*, alarm: Alarm) -> None:
    """Delete an alarm with its history."""
    before = _recorded(snapshot(alarm))
    audit_record(tenant=_log(alarm), action="alarm.delete", target=alarm, before=before)
    alarm.delete()


def _set(alarm: Alarm, values: dict[str, Any]) -> None:
    if alarm.metric == Metric.NO_REQUESTS and values.get("metric", alarm.metric) != Metric.NO_REQUESTS:
        for field in ("comparison", "threshold"):
            if field not in values:
                raise InvalidInputError(f"{field} is required, since the metric changes", field=field)
    for name, value in values.items():
        if name not in _REFERENCES:
            setattr(alarm, name, value)
    if alarm.tenant is None:
        _refer_for_operator(alarm, values)
    else:
        for field in ("deployment", "webhook_tenant"):
            if values.get(field):
                raise InvalidInputError(f"only the operator's alarms have a {field}: omit it", field=field)
        if "adapter" in values and values["adapter"] != (alarm.adapter and alarm.adapter.name):
            name = values["adapter"]
            alarm.adapter = adapter_get(tenant=alarm.tenant, name=name) if name else None
    if alarm.metric == Metric.NO_REQUESTS:
        alarm.comparison, alarm.threshold = Comparison.LESS_OR_EQUAL, 0.0
    _check(alarm)


def _refer_for_operator(alarm: Alarm, values: dict[str, Any]) -> None:
    if "adapter" in values:
        slug, _, name = (values["adapter"] or "").partition("/")
        if slug and not name:
            raise InvalidInputError("adapter must be <tenant>/<adapter>", field="adapter")
        alarm.adapter = adapter_get(tenant=_tenant(slug, "adapter"), name=name) if slug else None
    if "deployment" in values:
        name = values["deployment"]
        alarm.deployment = deployment_get(name=name) if name else None
    if "webhook_tenant" in values:
        slug = values["webhook_tenant"]
        alarm.webhook_tenant = _tenant(slug, "webhook_tenant") if slug else None
    if (alarm.adapter is None) == (alarm.deployment is None):
        raise InvalidInputError("set either adapter or deployment", field="adapter")


def _tenant(slug: str, field: str) -> Tenant:
    tenant = Tenant.objects.filter(pk=slug).first()
    if tenant is None:
        raise NotFoundError(f"{field}: tenant {slug[:63]!r} does not exist")
    return tenant


def _check(alarm: Alarm) -> None:
    alarm.name, alarm.description = alarm.name.strip(), alarm.description.strip()
    if not 0 < len(alarm.name) <= 100:
        raise InvalidInputError("name must have 1 to 100 characters", field="name")
    if len(alarm.description) > 500:
        raise InvalidInputError("description must have at most 500 characters", field="description")
    for field, choices in (
        ("metric", Metric.values),
        ("comparison", Comparison.values),
        ("treat_missing_data", MissingData.values),
    ):
        if getattr(alarm, field) not in choices:
            raise InvalidInputError(f"{field} must be one of {', '.join(choices)}", field=field)
    if not math.isfinite(alarm.threshold) or not 0 <= alarm.threshold <= 1e9:
        raise InvalidInputError("threshold must be from 0 to 1000000000", field="threshold")
    if alarm.metric == Metric.ERROR_RATE and alarm.threshold > 100:
        raise InvalidInputError("threshold of an error rate must be at most 100 percent", field="threshold")
    if alarm.period_seconds not in PERIODS:
        shown = ", ".join(map(str, PERIODS))
        raise InvalidInputError(f"period_seconds must be one of {shown}", field="period_seconds")
    most = LONGEST_WINDOW // alarm.period_seconds
    if not 1 <= alarm.evaluation_periods <= most:
        raise InvalidInputError(
            f"evaluation_periods must be from 1 to {most} with this period", field="evaluation_periods"
        )
    if not 1 <= alarm.datapoints_to_alarm <= alarm.evaluation_periods:
        raise InvalidInputError(
            f"datapoints_to_alarm must be from 1 to evaluation_periods ({alarm.evaluation_periods})",
            field="datapoints_to_alarm",
        )
    alarm.notify_on = _states(alarm.notify_on)


def _states(values: Sequence[str]) -> list[str]:
    if set(values) - set(State.values):
        raise InvalidInputError(f"notify_on must be some of {', '.join(State.values)}", field="notify_on")
    return [state for state in State.values if state in values]


def _save(alarm: Alarm) -> None:
    try:
        with transaction.atomic():
            alarm.save()
    except IntegrityError:
        raise ConflictError(f"alarm {alarm.name!r} already exists: choose another name") from None


def _log(alarm: Alarm) -> str:
    """Return the audit log that an alarm's changes belong to; "" is the platform's."""
    return alarm.tenant_id or ""


def _recorded(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in _PROGRESS}
