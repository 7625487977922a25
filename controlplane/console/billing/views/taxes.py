"""The operator's form for a tenant's tax treatment."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal, InvalidOperation

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from controlplane.billing.taxes.selectors import treatment_get
from controlplane.billing.taxes.services import treatment_remove, treatment_set
from controlplane.console.entered import entered
from controlplane.console.pages import staff_page
from controlplane.errors import ControlPlaneError, InvalidInputError
from controlplane.tenants.models import Tenant
from controlplane.tenants.selectors import tenant_get


@require_POST
@staff_page
def add(request: HttpRequest, slug: str) -> HttpResponse:
    """Add a treatment that starts on a given day."""
    found = tenant_get(slug=slug)
    try:
        _add(request, found)
    except ControlPlaneError as error:
        messages.error(request, str(error))
    else:
        messages.success(request, _("Tax treatment saved."))
    return redirect("console:staff-tenant", slug=slug)


@require_POST
@staff_page
def remove(request: HttpRequest, treatment: int) -> HttpResponse:
    """Remove a treatment that no invoice has used."""
    found = treatment_get(treatment_id=treatment)
    try:
        treatment_remove(treatment=found)
    except ControlPlaneError as error:
        messages.error(request, str(error))
    else:
        messages.success(request, _("Tax treatment removed."))
    return redirect("console:staff-tenant", slug=found.tenant)


def _add(request: HttpRequest, found: Tenant) -> None:
    def text(name: str, most: int) -> str:
        return entered(request, name, most=most)

    try:
        starts = dt.date.fromisoformat(text("starts", 10))
    except ValueError:
        raise InvalidInputError(_("give the first day as YYYY-MM-DD"), field="starts") from None
    try:
        rate = Decimal(text("rate_percent", 10) or "0")
    except InvalidOperation:
        raise InvalidInputError(_("the rate is a number such as 19 or 8.875"), field="rate_percent") from None
    treatment_set(
        tenant=found,
        starts=starts,
        kind=text("kind", 15),
        label=text("label", 30),
        rate_percent=rate,
        tax_number=text("tax_number", 40),
        text=text("text", 300),
    )
