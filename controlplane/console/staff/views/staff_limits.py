"""Staff: a tenant's limits and quota."""

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
    """Replace the tenant's limits; an empty field lifts one. The stop at zero credit is not changed."""
    found = tenant_get(slug=slug)

    def current() -> dict[str, str]:
        return limits_shown(tenant_limits_get(tenant=found))

    values = {name: request.POST.get(name, "").strip() for name in current()}
    try:
        with unchanged(request, row=found, shown=current):
            tenant_limits_set(tenant=found, **limits_entered(values))
    except ControlPlaneError as error:
        return _refused(request, found, "limits", values, error)
    messages.success(request, _("Limits saved. They take effect within a second."))
    return redirect("console:staff-tenant", slug=slug)


@require_POST
@staff_page
def quota(request: HttpRequest, slug: str) -> HttpResponse:
    """Replace the tenant's quota of adapters, versions and gigabytes."""
    found = tenant_get(slug=slug)

    def current() -> dict[str, str]:
        return quota_shown(quota_get(tenant=found))

    values = {name: request.POST.get(name, "").strip() for name in current()}
    try:
        with unchanged(request, row=found, shown=current):
            quota_set(tenant=found, **_quota_entered(values))
    except ControlPlaneError as error:
        return _refused(request, found, "quota", values, error)
    messages.success(request, _("Quota saved."))
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
    """Parse the quota form. Raises InvalidInputError."""
    entered: dict[str, int | None] = {}
    for name in _COUNTS:
        text = values[name]
        if text and not (text.isascii() and text.isdigit() and len(text) < 12):
            raise InvalidInputError(_("a whole number, or empty for no limit"), field=name)
        entered[name] = int(text) if text else None
    # Gigabytes are parsed like currency units, both 1e9 of the small unit; the quota checks the maximum.
    size = values["size_gb"]
    return {**entered, "size_bytes": nano_entered(size, field="size_bytes", below=10**12) if size else None}


def _quota_errors(error: ControlPlaneError) -> dict[str, str]:
    if isinstance(error, OutOfRangeError) and error.field == "size_bytes":
        most = {"high": nano_shown(error.high)}
        return {error.field: _("Gigabytes must be from 0 to %(high)s, or empty for no limit.") % most}
    return field_errors(error, conflict_field="form")
