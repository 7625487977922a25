"""Staff: a tenant's limits and quota."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from controlplane.adapters.quotas import quota_get, quota_set
from controlplane.billing.ledger.selectors import balance
from controlplane.console.amounts import nano_entered, nano_shown, whole
from controlplane.console.form_errors import FormErrors
from controlplane.console.keys.limits_form import LimitsErrors, limits_entered, limits_shown
from controlplane.console.pages import staff_page
from controlplane.console.seen import unchanged
from controlplane.console.staff.tenant_figures import quota_shown, tenant_context
from controlplane.errors import ControlPlaneError, InvalidInputError, OutOfRangeError
from controlplane.tenants.limits.selectors import tenant_limits_get
from controlplane.tenants.limits.services import tenant_limits_set
from controlplane.tenants.selectors import tenant_get

_COUNTS: Final = ("adapters", "versions")


@staff_page("POST")
def limits(request: HttpRequest, slug: str) -> HttpResponse:
    """Replace the tenant's limits; an empty field lifts one. The stop at zero credit is not changed."""
    found = tenant_get(slug=slug)

    def current() -> dict[str, str]:
        return limits_shown(tenant_limits_get(tenant=found))

    values = {name: request.POST.get(name, "").strip() for name in current()}
    currency = balance(tenant=found.pk).currency
    errors = LimitsErrors(request, currency=currency, conflict_field="form")
    with errors, unchanged(request, row=found, shown=current):
        tenant_limits_set(tenant=found, **limits_entered(values))
        messages.success(request, _("Limits saved. They take effect within a second."))
        return redirect("console:staff-tenant", slug=slug)
    context = tenant_context(request, found)
    context["limits_form"] |= {"values": values, "errors": errors, "seen": errors.seen}
    return errors.render("staff/tenant.html", context)


@staff_page("POST")
def quota(request: HttpRequest, slug: str) -> HttpResponse:
    """Replace the tenant's quota of adapters, versions and gigabytes."""
    found = tenant_get(slug=slug)

    def current() -> dict[str, str]:
        return quota_shown(quota_get(tenant=found))

    values = {name: request.POST.get(name, "").strip() for name in current()}
    with _QuotaErrors(request) as errors, unchanged(request, row=found, shown=current):
        quota_set(tenant=found, **_quota_entered(values))
        messages.success(request, _("Quota saved."))
        return redirect("console:staff-tenant", slug=slug)
    context = tenant_context(request, found)
    context["quota_form"] |= {"values": values, "errors": errors, "seen": errors.seen}
    return errors.render("staff/tenant.html", context)


def _quota_entered(values: dict[str, str]) -> dict[str, int | None]:
    """Parse the quota form. Raises InvalidInputError."""
    entered: dict[str, int | None] = {}
    for name in _COUNTS:
        entered[name] = whole(values[name])
        if values[name] and entered[name] is None:
            raise InvalidInputError(_("a whole number, or empty for no limit"), field=name)
    # Gigabytes are parsed like currency units, both 1e9 of the small unit; the quota checks the maximum.
    size = values["size_gb"]
    return {**entered, "size_bytes": nano_entered(size, field="size_bytes", below=10**12) if size else None}


class _QuotaErrors(FormErrors):
    def by_field(self, error: ControlPlaneError) -> Mapping[str, str]:
        if not isinstance(error, OutOfRangeError) or error.field != "size_bytes":
            return super().by_field(error)
        most = {"high": nano_shown(error.high)}
        return {error.field: _("Gigabytes must be from 0 to %(high)s, or empty for no limit.") % most}
