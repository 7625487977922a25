"""The ledger of a tenant: its members read it; the operator also books payments and reverses entries."""

from __future__ import annotations

import datetime as dt
import re
import uuid
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _

from controlplane.billing.invoices.selectors import invoice_get
from controlplane.billing.invoices.services import invoice_draft
from controlplane.billing.ledger.credits import entries_reversible, entry_reverse, payment_record
from controlplane.billing.ledger.selectors import balance, books_of, entry_by_id, entry_list
from controlplane.billing.models import EntryKind
from controlplane.billing.unpriced import unbilled_unpriced
from controlplane.console.amounts import nano_entered
from controlplane.console.form_errors import RefusalMessage
from controlplane.console.once import booked_once
from controlplane.console.pages import staff_page, tenant_page
from controlplane.console.paging import page_of
from controlplane.errors import InvalidInputError
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Permission
from controlplane.tenants.selectors import tenant_get


@tenant_page(read=Permission.BILLING_READ)
def journal(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """List the tenant's journal entries, newest first."""
    return render(request, "console/journal.html", _journal(request, tenant.pk))


@staff_page("GET")
def index(request: HttpRequest, slug: str) -> HttpResponse:
    """Show a tenant's balance and journal, with a form at each reversible entry."""
    whose = books_of(slug=slug)
    context = _journal(request, whose)
    rows = context["page"].rows
    undone = entries_reversible(entries=rows)
    context |= {
        "whose": whose,
        "balance": balance(tenant=whose),
        "unpriced": unbilled_unpriced(tenant=whose),
        "reversible": undone,
        "once": uuid.uuid4().hex,
    }
    return render(request, "staff/books.html", context)


def _journal(request: HttpRequest, tenant: str) -> dict[str, Any]:
    kind = request.GET.get("kind", "")
    kind = kind if kind in EntryKind.values else ""
    return {
        "page": page_of(request, entry_list(tenant=tenant, kind=kind)),
        "kind": kind,
        "kinds": EntryKind.choices,
    }


@staff_page("POST")
def reverse(request: HttpRequest, entry: int) -> HttpResponse:
    """Reverse a deposit, a payment or a credit; a form that is sent twice counts once."""
    found = entry_by_id(entry_id=entry)
    with RefusalMessage(request):
        memo = request.POST.get("memo", "").strip()
        with booked_once(request, what="reversal", parts=(str(entry), memo)) as is_first:
            if is_first:
                entry_reverse(entry=found, memo=memo)
        messages.success(request, _("Entry %(number)s was reversed.") % {"number": found.number})
    return redirect("console:staff-books", slug=found.tenant)


@staff_page("POST")
def pay(request: HttpRequest, invoice: int) -> HttpResponse:
    """Book a payment for an invoice; a form that is sent twice counts once."""
    found = invoice_get(invoice_id=invoice)
    with RefusalMessage(request):
        nano = nano_entered(request.POST.get("amount", ""), field="amount")
        memo = request.POST.get("memo", "").strip()
        with booked_once(request, what="payment", parts=(str(found.pk), str(nano), memo)) as is_first:
            if is_first:
                payment_record(tenant=found.tenant, invoice=found, amount_nano=nano, memo=memo)
        messages.success(request, _("Payment recorded."))
    return redirect("console:staff-invoice", invoice=invoice)


@staff_page("POST")
def draft(request: HttpRequest) -> HttpResponse:
    """Draft a tenant's month, or update its draft from the ledger."""
    with RefusalMessage(request):
        tenant = tenant_get(slug=request.POST.get("tenant", "").strip())
        made = invoice_draft(tenant=tenant.pk, month=_month(request.POST.get("month", "")))
        messages.success(request, _("Draft updated."))
        return redirect("console:staff-invoice", invoice=made.pk)
    return redirect("console:staff-invoices")


def _month(text: str) -> dt.date:
    # The format of <input type="month">; browsers without that input let people type.
    if re.fullmatch(r"\d{4}-\d{2}", text.strip(), re.ASCII):
        try:
            return dt.date.fromisoformat(f"{text.strip()}-01")
        except ValueError:
            pass
    raise InvalidInputError(_("give the month as YYYY-MM"), field="month")
