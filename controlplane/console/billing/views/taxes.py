"""The operator's form for a tenant's tax treatment."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from controlplane.billing.taxes.api import TaxTreatmentInput
from controlplane.billing.taxes.selectors import treatment_get
from controlplane.billing.taxes.services import treatment_remove, treatment_set
from controlplane.console.form_errors import RefusalMessage, parsed, posted
from controlplane.console.pages import staff_page
from controlplane.tenants.selectors import tenant_get


@staff_page("POST")
def add(request: HttpRequest, slug: str) -> HttpResponse:
    """Add a treatment that starts on a given day."""
    found = tenant_get(slug=slug)
    with RefusalMessage(request):
        treatment_set(tenant=found, **parsed(TaxTreatmentInput, posted(request, TaxTreatmentInput)))
        messages.success(request, _("Tax treatment saved."))
    return redirect("console:staff-tenant", slug=slug)


@staff_page("POST")
def remove(request: HttpRequest, treatment: int) -> HttpResponse:
    """Remove a treatment that no invoice has used."""
    found = treatment_get(treatment_id=treatment)
    with RefusalMessage(request):
        treatment_remove(treatment=found)
        messages.success(request, _("Tax treatment removed."))
    return redirect("console:staff-tenant", slug=found.tenant)
