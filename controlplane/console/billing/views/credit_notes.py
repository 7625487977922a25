"""Credit notes: the tenant's page of one; the operator's pages that issue and void them."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any, Final

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _

from controlplane.billing import items
from controlplane.billing.credit_notes.document import CreditNoteDocument
from controlplane.billing.credit_notes.selectors import (
    credit_note_get,
    credit_note_list,
    left_of,
    line_left,
    note_line_list,
)
from controlplane.billing.credit_notes.services import credit_note_issue, credit_note_void
from controlplane.billing.documents.formats import CONTENT_TYPES
from controlplane.billing.invoices.selectors import invoice_get, line_list
from controlplane.billing.ledger.selectors import invoice_open_nano
from controlplane.billing.models import CreditNote, Invoice
from controlplane.billing.parties.selectors import parties_missing
from controlplane.billing.taxes.selectors import tax_title
from controlplane.console.amounts import nano_entered, nano_shown, whole
from controlplane.console.downloads import document_file
from controlplane.console.form_errors import RefusalMessage
from controlplane.console.once import booked_once
from controlplane.console.pages import staff_page, tenant_page
from controlplane.errors import InvalidInputError
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Permission

LINES: Final = 500


@tenant_page(read=Permission.BILLING_READ)
def detail(request: HttpRequest, tenant: Tenant, credit_note: int) -> HttpResponse:
    """Show one credit note, by its id."""
    note = credit_note_get(credit_note_id=credit_note, tenant=tenant.pk)
    return render(request, "console/credit_note.html", _note_context(note))


@staff_page("GET")
def staff_detail(request: HttpRequest, credit_note: int) -> HttpResponse:
    """Show any tenant's credit note, with the form that voids it."""
    context = _note_context(credit_note_get(credit_note_id=credit_note)) | {"once": uuid.uuid4().hex}
    return render(request, "staff/credit_note.html", context)


@staff_page("POST")
def void(request: HttpRequest, credit_note: int) -> HttpResponse:
    """Void a credit note by another one; a form that is sent twice counts once."""
    note, memo = credit_note_get(credit_note_id=credit_note), request.POST.get("memo", "")
    with RefusalMessage(request):
        with booked_once(request, what="credit-note-void", parts=(str(note.pk), memo)) as is_first:
            if is_first:
                credit_note_void(credit_note=note, memo=memo)
        messages.success(request, _("Credit note voided."))
    return redirect("console:staff-credit-note", credit_note=credit_note)


def _note_context(note: CreditNote) -> dict[str, Any]:
    lines = note_line_list(credit_note=note)
    return {
        "note": note,
        "tax_title": tax_title(note.invoice),
        "lines": [
            (
                line.invoice_line,
                items.title(line.invoice_line.item) if line.invoice_line else "",
                line.amount_nano,
            )
            for line in lines[:LINES]
        ],
        "left_out": max(0, lines.count() - LINES),
        "forms": list(CONTENT_TYPES),
    }


@tenant_page(read=Permission.BILLING_READ)
def file(request: HttpRequest, tenant: Tenant, credit_note: int, form: str) -> HttpResponseBase:
    """Download the credit note in one of its formats."""
    note = credit_note_get(credit_note_id=credit_note, tenant=tenant.pk)
    return document_file(request, CreditNoteDocument(note), form)


@staff_page("GET")
def invoice(request: HttpRequest, invoice: int) -> HttpResponse:
    """Show any tenant's invoice: sums, lines with their open amounts, its credit notes.

    Its forms finalize the invoice and issue credit notes.
    """
    found = invoice_get(invoice_id=invoice)
    lines = list(line_list(invoice=found)[:LINES])
    left, rest = left_of(invoice=found), line_left(lines=lines)
    unpaid = invoice_open_nano(invoice=found)
    context = {
        "invoice": found,
        "tax_title": tax_title(found),
        "open": unpaid,
        "open_entered": nano_shown(unpaid),
        "left": left,
        "lines": [(line, items.title(line.item), max(0, rest[line.pk])) for line in lines],
        "notes": notes_of(found),
        "parties": parties_missing(tenant=found.tenant, day=dt.datetime.now(dt.UTC).date()),
        "reasons": CreditNote.Reason.choices,
        "once": uuid.uuid4().hex,
    }
    return render(request, "staff/invoice.html", context)


@staff_page("POST")
def issue(request: HttpRequest, invoice: int) -> HttpResponse:
    """Credit an amount, one line, or everything open; a form that is sent twice counts once."""
    found = invoice_get(invoice_id=invoice)
    with RefusalMessage(request):
        values = _values(request)
        parts = (str(found.pk), *(f"{name}={value}" for name, value in sorted(values.items())))
        with booked_once(request, what="credit-note", parts=parts) as is_first:
            if is_first:
                credit_note_issue(invoice=found, **values)
        messages.success(request, _("Credit note issued."))
    return redirect("console:staff-invoice", invoice=invoice)


def notes_of(invoice: Invoice) -> QuerySet[CreditNote]:
    """Return the invoice's credit notes, newest first."""
    return credit_note_list(tenant=invoice.tenant, invoice=invoice)[:LINES]


def _values(request: HttpRequest) -> dict[str, Any]:
    amount, line = (request.POST.get(name, "").strip() for name in ("amount", "line"))
    position = whole(line)
    if line and position is None:
        raise InvalidInputError(_("give a line number"), field="line")
    nano = nano_entered(amount, field="amount") if amount else None
    return {
        "reason": request.POST.get("reason", ""),
        "memo": request.POST.get("memo", ""),
        "post_payment_as": request.POST.get("post_payment_as", ""),
        "amount_nano": None if line else nano,
        "lines": None if position is None else {position: nano},
    }
