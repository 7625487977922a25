"""Staff: what one tenant may use, and how much it may keep."""

from __future__ import annotations

from typing import Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from controlplane.adapters.quotas import quota_get, quota_set
from controlplane.console.amounts import nano_entered, nano_shown
from controlplane.console.keys.limits_form import limits_entered, limits_errors, limits_shown
from controlplane.console.pages import field_errors, staff_page
from controlplane.console.seen import seen_again, unchanged
from controlplane.console.staff.tenant_figures import quota_shown, tenant_context
from controlplane.errors import ControlPlaneError, InvalidInputError, OutOfRangeError
from controlplane.tenants.limits.selectors import tenant_limits_get
from controlplane.tenants.limits.services import tenant_limits_set
from controlplane.tenants.models import Tenant
from controlplane.tenants.selectors import tenant_get

_COUNTS: Final = ("adapters", "versions")


@require_POST
@staff_page
def limits(request: HttpRequest, slug: str) -> HttpResponse:
    """Replaces the tenant's limits; an empty field lifts one. Whether calls stop at zero stays."""
    found = tenant_get(slug=slug)

    def shown() -> dict[str, str]:
        return limits_shown(tenant_limits_get(tenant=found))

    values = {name: request.POST.get(name, "").strip() for name in shown()}
    try:
        with unchanged(request, row=found, shown=shown):
            tenant_limits_set(tenant=found, **limits_entered(values))
    except ControlPlaneError as error:
        return _refused(request, found, "limits", values, error)
    messages.success(request, _("The limits are in force everywhere within a second."))
    return redirect("console:staff-tenant", slug=slug)


@require_POST
@staff_page
def quota(request: HttpRequest, slug: str) -> HttpResponse:
    """Replaces how many adapters, versions and gigabytes the tenant may keep."""
    found = tenant_get(slug=slug)

    def shown() -> dict[str, str]:
        return quota_shown(quota_get(tenant=found))

    values = {name: request.POST.get(name, "").strip() for name in shown()}
    try:
        with unchanged(request, row=found, shown=shown):
            quota_set(tenant=found, **_quota_entered(values))
    except ControlPlaneError as error:
        return _refused(request, found, "quota", values, error)
    messages.success(request, _("The quota is changed."))
    return redirect("console:staff-tenant", slug=slug)


def _refused(
    request: HttpRequest, found: Tenant, form: str, values: dict[str, str], error: ControlPlaneError
) -> HttpResponse:
    context = tenant_context(found)
    if form == "limits":
        errors = limits_errors(error, currency=context["currency"], conflict_field="form")
    else:
        errors = _quota_errors(error)
    context[f"{form}_form"] |= {"values": values, "errors": errors, "seen": seen_again(request, error)}
    return render(request, "staff/tenant.html", context, status=422)


def _quota_entered(values: dict[str, str]) -> dict[str, int | None]:
    """Raises InvalidInputError."""
    entered: dict[str, int | None] = {}
    for name in _COUNTS:
        text = values[name]
        if text and not (text.isascii() and text.isdigit() and len(text) < 12):
            raise InvalidInputError(_("a whole number, or nothing for no limit"), field=name)
        entered[name] = int(text) if text else None
    # Bytes of a gigabyte are as many as a unit's nano-units; how many there may be is the quota's to say.
    size = values["size_gb"]
    return {**entered, "size_bytes": nano_entered(size, field="size_bytes", below=10**12) if size else None}


def _quota_errors(error: ControlPlaneError) -> dict[str, str]:
    if isinstance(error, OutOfRangeError) and error.field == "size_bytes":
        most = {"high": nano_shown(error.high)}
        return {error.field: _("Gigabytes must be from 0 to %(high)s, or nothing for no limit.") % most}
    return field_errors(error, conflict_field="form")
