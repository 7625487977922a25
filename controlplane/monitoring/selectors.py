"""Reads of alarms and their histories."""

from __future__ import annotations

from django.db.models import QuerySet

from controlplane.monitoring.models import Alarm, AlarmChange
from controlplane.platform.row_lookup import row_get
from controlplane.tenants.models import Tenant


def alarm_list(*, tenant: Tenant | None) -> QuerySet[Alarm]:
    """Return a tenant's alarms by name, or (None) the operator's."""
    rows = Alarm.objects.filter(tenant=tenant).select_related("adapter", "deployment", "tenant")
    return rows.order_by("name", "pk")


def alarm_get(*, tenant: Tenant | None, alarm_id: int) -> Alarm:
    """Return an alarm of a tenant, or (None) of the operator. Raises NotFoundError, also for another's."""
    rows = alarm_list(tenant=tenant)
    rows = rows.filter(pk=alarm_id) if alarm_id < 1 << 63 else rows.none()
    return row_get(rows, f"alarm {alarm_id} does not exist")


def alarm_change_list(*, alarm: Alarm) -> QuerySet[AlarmChange]:
    """Return an alarm's changes of state, newest first."""
    return AlarmChange.objects.filter(alarm=alarm).order_by("-pk")
