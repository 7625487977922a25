"""Staff: tenants, their export, and their way out."""

from __future__ import annotations

import uuid
from typing import Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_POST

from controlplane.billing.ledger.credits import credit_grant, payment_record
from controlplane.billing.ledger.selectors import balance
from controlplane.billing.models import TaxKind
from controlplane.billing.taxes.selectors import treatment_list
from controlplane.console.amounts import nano_entered
from controlplane.console.once import booked_once
from controlplane.console.pages import staff_page
from controlplane.errors import ControlPlaneError, NotFoundError
from controlplane.http.streaming import streamed
from controlplane.limits.selectors import tenant_limits_get
from controlplane.limits.services import prepaid_stop_set
from controlplane.operations.export import export_pieces
from controlplane.operations.models import TenantDeletion
from controlplane.operations.selectors import deletion_get
from controlplane.operations.services import tenant_deletion_cancel, tenant_deletion_schedule
from controlplane.tenants.models import Tenant
from controlplane.tenants.selectors import tenant_get, tenant_list

SHOWN: Final = 100


@require_GET
@staff_page
def tenants(request: HttpRequest) -> HttpResponse:
    """Tenants by id, found by its beginning, and the deletions under way."""
    search = request.GET.get("search", "").strip()
    found = tenant_list().filter(pk__startswith=search)[:SHOWN]
    context = {"found": found, "search": search, "deletions": TenantDeletion.objects.all()[:SHOWN]}
    return render(request, "staff/tenants.html", context)


@require_GET
@staff_page
def tenant(request: HttpRequest, slug: str) -> HttpResponse:
    """One tenant: its export, its deletion."""
    found = tenant_get(slug=slug)
    how = balance(tenant=found.pk)
    context = {
        "found": found,
        "deletion": TenantDeletion.objects.filter(pk=slug).first(),
        "limits": tenant_limits_get(tenant=found),
        "balance": how,
        "currency": how.currency,
        "once": uuid.uuid4().hex,
        "treatments": treatment_list(tenant=found.pk),
        "tax_kinds": TaxKind.choices,
    }
    return render(request, "staff/tenant.html", context)


@require_POST
@staff_page
def prepaid(request: HttpRequest, slug: str) -> HttpResponse:
    """Has its calls stop, or not, when nothing is left of what is prepaid."""
    found = tenant_get(slug=slug)
    stops = request.POST.get("stops") == "true"
    prepaid_stop_set(tenant=found, stops=stops)
    if stops:
        messages.success(request, _("Calls of %(tenant)s stop when nothing is left.") % {"tenant": slug})
    else:
        messages.success(request, _("Calls of %(tenant)s go on when nothing is left.") % {"tenant": slug})
    return redirect("console:staff-tenant", slug=slug)


@require_POST
@staff_page
def top_up(request: HttpRequest, slug: str) -> HttpResponse:
    """Books money that was paid in advance, or a credit; one form that is sent twice, once."""
    found = tenant_get(slug=slug)
    try:
        _book_once(request, found)
    except ControlPlaneError as error:
        messages.error(request, str(error))
    else:
        messages.success(request, _("It is booked for %(tenant)s.") % {"tenant": slug})
    return redirect("console:staff-tenant", slug=slug)


def _book_once(request: HttpRequest, found: Tenant) -> None:
    nano = nano_entered(request.POST.get("amount", ""), field="amount")
    note, credit = request.POST.get("note", "")[:200], request.POST.get("what") == "credit"

    def book() -> None:
        if credit:
            credit_grant(tenant=found, amount_nano=nano, note=note)
        else:
            payment_record(tenant=found, amount_nano=nano, memo=note)

    booked_once(request, what="top-up", parts=(found.pk, str(nano), note, str(credit)), book=book)


@require_GET
@staff_page
def export(request: HttpRequest, slug: str) -> HttpResponseBase:
    """Everything of the tenant as a tar archive."""
    pieces = export_pieces(tenant_get(slug=slug))
    response = streamed(request, pieces, content_type="application/x-tar", file_name=f"{slug}.tar")
    response["Content-Encoding"] = "identity"
    return response


@require_POST
@staff_page
def delete(request: HttpRequest, slug: str) -> HttpResponse:
    """Disables it, and has it purged after the grace time."""
    try:
        deletion = tenant_deletion_schedule(
            tenant=tenant_get(slug=slug),
            confirm=request.POST.get("confirm", ""),
            reason=request.POST.get("reason", ""),
        )
    except NotFoundError:
        raise
    except ControlPlaneError as error:
        messages.error(request, str(error))
    else:
        text = _("Tenant %(tenant)s is disabled; it is purged on %(day)s.")
        messages.success(request, text % {"tenant": slug, "day": deletion.purge_after.date()})
    return redirect("console:staff-tenant", slug=slug)


@require_POST
@staff_page
def cancel(request: HttpRequest, slug: str) -> HttpResponse:
    """Brings it back."""
    try:
        tenant_deletion_cancel(deletion=deletion_get(slug=slug))
    except NotFoundError:
        raise
    except ControlPlaneError as error:
        messages.error(request, str(error))
    else:
        messages.success(request, _("Tenant %(tenant)s is back.") % {"tenant": slug})
    return redirect("console:staff-tenant", slug=slug)
