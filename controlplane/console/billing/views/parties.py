"""Forms for the seller's and the tenants' billing details."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST

from controlplane.billing.parties.selectors import SELLER, fields_of, party_list
from controlplane.billing.parties.services import party_set
from controlplane.console.pages import field_errors, staff_page, tenant_page
from controlplane.errors import ControlPlaneError, InvalidInputError
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Permission
from controlplane.tenants.selectors import tenant_get


@require_http_methods(["GET", "POST"])
@staff_page
def seller(request: HttpRequest) -> HttpResponse:
    """Show the seller's current and earlier details, and the form that changes them."""
    errors: dict[str, str] = {}
    if request.method == "POST":
        try:
            _set(request, SELLER)
        except ControlPlaneError as error:
            errors = field_errors(error, conflict_field="starts")
        else:
            messages.success(request, _("Billing details saved for documents from that day."))
            return redirect("console:staff-seller")
    context = parties_context(SELLER) | {"errors": errors}
    if errors:
        context["values"] = request.POST
    return render(request, "staff/seller.html", context, status=422 if errors else 200)


@require_POST
@staff_page
def tenant(request: HttpRequest, slug: str) -> HttpResponse:
    """Set a tenant's billing details, as staff."""
    _set_and_report(request, tenant_get(slug=slug).pk)
    return redirect("console:staff-tenant", slug=slug)


@require_POST
@tenant_page(Permission.BILLING_WRITE)
def own(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """Set the tenant's own billing details."""
    _set_and_report(request, tenant.pk)
    return redirect("console:billing", tenant=tenant.pk)


def parties_context(tenant: str) -> dict[str, Any]:
    """Return the history of a tenant's or the seller's details, with the newest as the form's values."""
    found = list(party_list(tenant=tenant)[:20])
    return {"parties": found, "values": found[0] if found else None, "selling": tenant == SELLER}


def _set_and_report(request: HttpRequest, tenant: str) -> None:
    try:
        _set(request, tenant)
    except ControlPlaneError as error:
        messages.error(request, str(error))
    else:
        messages.success(request, _("Seller details saved for documents from that day."))


def _set(request: HttpRequest, tenant: str) -> None:
    day = request.POST.get("starts", "").strip()
    try:
        starts = dt.date.fromisoformat(day) if day else None
    except ValueError:
        raise InvalidInputError(_("give the first day as YYYY-MM-DD"), field="starts") from None
    values = {name: request.POST.get(name, "") for name in fields_of(tenant)}
    party_set(tenant=tenant, starts=starts, values=values)
