"""Reads of alarms and their histories."""

from __future__ import annotations

from django.db.models import Q, QuerySet

from controlplane.adapters.models import Adapter
from controlplane.monitoring.models import Alarm, AlarmChange, State
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


def alarm_list_on(*, tenant: Tenant | None, adapter: Adapter) -> QuerySet[Alarm]:
    """Return the alarms of an owner that watch this adapter, or all of the tenant's adapters together."""
    watching = Q(adapter=adapter) | Q(adapter=None, tenant__isnull=False)
    return alarm_list(tenant=tenant).filter(watching)


def alarm_list_firing() -> QuerySet[Alarm]:
    """Return the operator's alarms in the state ALARM, the newest first."""
    return alarm_list(tenant=None).filter(state=State.ALARM, enabled=True).order_by("-state_at", "-pk")


def alarm_list_in_alarm(*, tenant: Tenant | None, adapters_of: Tenant) -> QuerySet[Alarm]:
    """Return an owner's alarms in the state ALARM on a tenant's adapters."""
    alarms = alarm_list(tenant=tenant).filter(state=State.ALARM, enabled=True)
    return alarms.filter(Q(adapter=None, tenant=adapters_of) | Q(adapter__tenant=adapters_of))
