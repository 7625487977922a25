"""Alarms: the list with the form that creates one, and one alarm with its history and settings."""

from __future__ import annotations

from typing import Any, Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from controlplane.console.form_errors import FormErrors, parsed
from controlplane.console.pages import page_user, staff_page, tenant_page
from controlplane.console.seen import unchanged
from controlplane.monitoring.models import Alarm, Comparison, Metric, MissingData, State
from controlplane.monitoring.selectors import alarm_change_list, alarm_get, alarm_list
from controlplane.monitoring.serializers import AlarmInput
from controlplane.monitoring.services import (
    DEFAULT_NOTIFY_ON,
    PERIODS,
    alarm_create,
    alarm_delete,
    alarm_update,
)
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Permission

_SHOWN: Final = 50
_TEXTS: Final = (
    "name",
    "description",
    "adapter",
    "metric",
    "comparison",
    "threshold",
    "period_seconds",
    "evaluation_periods",
    "datapoints_to_alarm",
    "treat_missing_data",
)
_OPERATOR_TEXTS: Final = ("deployment", "webhook_tenant")
_NEW: Final[dict[str, Any]] = {
    "metric": Metric.ERROR_RATE,
    "comparison": Comparison.GREATER,
    "threshold": "5",
    "period_seconds": "300",
    "evaluation_periods": "3",
    "datapoints_to_alarm": "2",
    "treat_missing_data": MissingData.MISSING,
    "notify_on": DEFAULT_NOTIFY_ON,
    "email": True,
    "enabled": True,
}


@tenant_page(read=Permission.ADAPTERS_READ, write=Permission.ADAPTERS_WRITE)
def index(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """List a tenant's alarms, with the form that creates one."""
    return _index(request, tenant)


@staff_page("GET", "POST")
def staff_index(request: HttpRequest) -> HttpResponse:
    """List the operator's alarms, with the form that creates one."""
    return _index(request, None)


@tenant_page(read=Permission.ADAPTERS_READ, write=Permission.ADAPTERS_WRITE)
def detail(request: HttpRequest, tenant: Tenant, alarm: int) -> HttpResponse:
    """Show one alarm of a tenant."""
    return _detail(request, tenant, alarm)


@staff_page("GET", "POST")
def staff_detail(request: HttpRequest, alarm: int) -> HttpResponse:
    """Show one alarm of the operator."""
    return _detail(request, None, alarm)


@tenant_page(write=Permission.ADAPTERS_WRITE)
def delete(request: HttpRequest, tenant: Tenant, alarm: int) -> HttpResponse:
    """Delete a tenant's alarm."""
    return _delete(request, tenant, alarm)


@staff_page("POST")
def staff_delete(request: HttpRequest, alarm: int) -> HttpResponse:
    """Delete an operator's alarm."""
    return _delete(request, None, alarm)


def _index(request: HttpRequest, tenant: Tenant | None) -> HttpResponse:
    errors = FormErrors(request, conflict_field="name")
    values: dict[str, Any] = {**_NEW, "adapter": request.GET.get("adapter", "")[:127]}
    if request.method == "POST":
        values = _posted(request, tenant)
        with errors:
            alarm = alarm_create(tenant=tenant, created_by=page_user(request), **_parsed(values))
            messages.success(request, _("Alarm created. Its first evaluation follows within a minute."))
            return redirect(*_page("alarm", tenant), alarm.pk)
    context = {**_choices(tenant), "alarms": alarm_list(tenant=tenant), "values": values}
    return errors.render("console/monitoring/alarms.html", context)


def _detail(request: HttpRequest, tenant: Tenant | None, alarm_id: int) -> HttpResponse:
    alarm = alarm_get(tenant=tenant, alarm_id=alarm_id)
    errors = FormErrors(request, conflict_field="name", shown=_form_state(alarm))
    values = _values(alarm)
    if request.method == "POST":
        values = _posted(request, tenant)
        current = lambda: _form_state(alarm_get(tenant=tenant, alarm_id=alarm_id))  # noqa: E731
        with errors, unchanged(request, row=alarm, shown=current):
            alarm_update(alarm=alarm, **_parsed(values))
            messages.success(request, _("Alarm updated."))
            return redirect(*_page("alarm", tenant), alarm.pk)
    context = {
        **_choices(tenant),
        "alarm": alarm_get(tenant=tenant, alarm_id=alarm_id),
        "values": values,
        "changes": alarm_change_list(alarm=alarm)[:_SHOWN],
    }
    return errors.render("console/monitoring/alarm.html", context)


def _delete(request: HttpRequest, tenant: Tenant | None, alarm_id: int) -> HttpResponse:
    alarm_delete(alarm=alarm_get(tenant=tenant, alarm_id=alarm_id))
    messages.success(request, _("Alarm deleted."))
    return redirect(*_page("alarms", tenant))


def _page(name: str, tenant: Tenant | None) -> tuple[str, ...]:
    return (f"console:staff-{name}",) if tenant is None else (f"console:{name}", tenant.pk)


def _posted(request: HttpRequest, tenant: Tenant | None) -> dict[str, Any]:
    texts = _TEXTS if tenant else (*_TEXTS, *_OPERATOR_TEXTS)
    values: dict[str, Any] = {name: request.POST.get(name, "").strip() for name in texts}
    values["notify_on"] = request.POST.getlist("notify_on")
    return values | {name: name in request.POST for name in ("email", "enabled")}


def _parsed(values: dict[str, Any]) -> dict[str, Any]:
    """Parse the form as the REST API does; an empty text clears what it names."""
    cleared = {name: None for name in ("adapter", *_OPERATOR_TEXTS) if values.get(name) == ""}
    return {**parsed(AlarmInput, values), **cleared, "description": values["description"]}


def _values(alarm: Alarm) -> dict[str, Any]:
    adapter = "" if alarm.adapter is None else alarm.adapter.name if alarm.tenant else str(alarm.adapter)
    return {name: getattr(alarm, name) for name in (*_TEXTS, "notify_on", "email", "enabled")} | {
        "adapter": adapter,
        "threshold": f"{alarm.threshold:.15g}",
        "period_seconds": str(alarm.period_seconds),
        "deployment": alarm.deployment.name if alarm.deployment else "",
        "webhook_tenant": alarm.webhook_tenant_id or "",
    }


def _form_state(alarm: Alarm) -> dict[str, str]:
    values = _values(alarm) | {"notify_on": ", ".join(alarm.notify_on)}
    return {name: str(value) for name, value in values.items()}


def _choices(tenant: Tenant | None) -> dict[str, Any]:
    return {
        "shell": "console/shell.html" if tenant else "staff/base.html",
        "is_staff_page": tenant is None,
        "alarms_route": _page("alarms", tenant)[0],
        "alarm_route": _page("alarm", tenant)[0],
        "metrics": Metric.choices,
        "comparisons": Comparison.choices,
        "periods": [
            (str(seconds), _("%(n)d min") % {"n": seconds // 60} if seconds < 3600 else _("1 hour"))
            for seconds in PERIODS
        ],
        "missing": MissingData.choices,
        "states": State.choices,
    }
