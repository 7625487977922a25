"""Forms for the seller's and the tenants' billing details."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from controlplane.billing.parties.selectors import SELLER, fields_of, party_list
from controlplane.billing.parties.services import party_set
from controlplane.console.form_errors import FormErrors, RefusalMessage
from controlplane.console.pages import staff_page, tenant_page
from controlplane.errors import InvalidInputError
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Permission
from controlplane.tenants.selectors import tenant_get


@staff_page("GET", "POST")
def seller(request: HttpRequest) -> HttpResponse:
    """Show the seller's current and earlier details, and the form that changes them."""
    errors = FormErrors(request, conflict_field="starts")
    if request.method == "POST":
        with errors:
            _set(request, SELLER)
            messages.success(request, _("Billing details saved for documents from that day."))
            return redirect("console:staff-seller")
    context = parties_context(SELLER) | ({"values": request.POST} if errors else {})
    return errors.render("staff/seller.html", context)


@staff_page("POST")
def tenant(request: HttpRequest, slug: str) -> HttpResponse:
    """Set a tenant's billing details, as staff."""
    _set_and_report(request, tenant_get(slug=slug).pk)
    return redirect("console:staff-tenant", slug=slug)


@tenant_page(write=Permission.BILLING_WRITE)
def own(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """Set the tenant's own billing details."""
    _set_and_report(request, tenant.pk)
    return redirect("console:billing", tenant=tenant.pk)


def parties_context(tenant: str) -> dict[str, Any]:
    """Return the history of a tenant's or the seller's details, with the newest as the form's values."""
    found = list(party_list(tenant=tenant)[:20])
    return {"parties": found, "values": found[0] if found else None, "selling": tenant == SELLER}


def _set_and_report(request: HttpRequest, tenant: str) -> None:
    with RefusalMessage(request):
        _set(request, tenant)
        messages.success(request, _("Seller details saved for documents from that day."))


def _set(request: HttpRequest, tenant: str) -> None:
    day = request.POST.get("starts", "").strip()
    try:
        starts = dt.date.fromisoformat(day) if day else None
    except ValueError:
        raise InvalidInputError(_("give the first day as YYYY-MM-DD"), field="starts") from None
    values = {name: request.POST.get(name, "") for name in fields_of(tenant)}
    party_set(tenant=tenant, starts=starts, values=values)
