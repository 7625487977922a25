"""What a tenant owes and why: its balance, credits, budget, invoices and their files."""

from __future__ import annotations

from typing import Final

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from controlplane.billing.credit_notes.selectors import credit_note_list
from controlplane.billing.invoices.currency import decimal_text, minor_text
from controlplane.billing.invoices.download import invoice_download
from controlplane.billing.invoices.files import CONTENT_TYPES, item_title
from controlplane.billing.invoices.selectors import invoice_get, invoice_list, line_list
from controlplane.billing.ledger.selectors import balance, grants_left, invoice_open_nano, invoices_open
from controlplane.billing.models import BudgetNotice
from controlplane.billing.price_list import PriceList
from controlplane.billing.taxes.selectors import tax_title, treatment_list
from controlplane.console.pages import tenant_page
from controlplane.console.spend import budget_state
from controlplane.console.views.credit_notes import notes_of
from controlplane.console.views.parties import parties_context
from controlplane.errors import ConflictError, InvalidInputError, NotFoundError, UnavailableError
from controlplane.limits.models import ScopeLimits
from controlplane.limits.selectors import tenant_limits_get
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Permission
from controlplane.tenants.selectors import api_key_names
from gateway.wire_limits import budget_period

SHOWN: Final = 60
"""Invoices: five years."""
LINES: Final = 500


@require_GET
@tenant_page(Permission.BILLING_READ)
def index(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """How the tenant stands, and its invoices."""
    found = balance(tenant=tenant.pk)
    limits = tenant_limits_get(tenant=tenant)
    invoices = list(invoice_list(tenant=tenant.pk)[:SHOWN])
    unpaid = invoices_open(tenant=tenant.pk, invoices=invoices)
    context = {
        "currency": found.currency,
        "taken_back": found.prepaid < 0,
        "sums": {
            name: decimal_text(getattr(found, name))
            for name in ("unbilled", "receivable", "prepaid", "credit", "available")
        },
        "credits": [(grant, decimal_text(left)) for grant, left in grants_left(tenant=tenant.pk)],
        "budget": None if limits.budget_nano is None else decimal_text(limits.budget_nano),
        "budget_state": budget_state(limits=limits, prices=PriceList.load()),
        "limits": limits,
        "available": found.available,
        "notice": _notice(limits),
        "invoices": [
            (
                row,
                decimal_text(row.lines_nano),
                minor_text(row.due_nano, row.currency),
                minor_text(unpaid.get(row.pk, 0), row.currency),
                row.pk in unpaid,
            )
            for row in invoices
        ],
        "notes": [
            (note, decimal_text(note.total_nano)) for note in credit_note_list(tenant=tenant.pk)[:SHOWN]
        ],
        "treatments": treatment_list(tenant=tenant.pk)[:SHOWN],
        **parties_context(tenant.pk),
    }
    return render(request, "console/billing.html", context)


def _notice(limits: ScopeLimits) -> BudgetNotice | None:
    """The highest share that was reached of the budget that is shown, in the period under way."""
    period, _ = budget_period("day" if limits.budget_period == "day" else "month", timezone.now())
    notices = BudgetNotice.objects.filter(
        scope=limits.scope, period=period, budget_nano=limits.budget_nano or 0
    )
    return notices.order_by("-percent").first()


@require_GET
@tenant_page(Permission.BILLING_READ)
def detail(request: HttpRequest, tenant: Tenant, invoice: int) -> HttpResponse:
    """One invoice, by its id: sums, lines, and what to download."""
    found = invoice_get(invoice_id=invoice, tenant=tenant.pk)
    lines = line_list(invoice=found)
    shown = list(lines[:LINES])
    names = api_key_names(tenant=tenant.pk, public_ids=[line.key_id for line in shown])
    sums = ("lines", "carried_in", "credits", "prepaid", "carried_out")
    context = {
        "invoice": found,
        "sums": {name: decimal_text(getattr(found, f"{name}_nano")) for name in sums},
        "shortfall": minor_text(found.shortfall_nano, found.currency),
        "due": minor_text(found.due_nano, found.currency),
        "open": minor_text(invoice_open_nano(invoice=found), found.currency),
        "net": decimal_text(found.net_nano),
        "tax": minor_text(found.tax_nano, found.currency),
        "tax_title": tax_title(found),
        "notes": notes_of(found),
        "lines": [
            (
                line,
                item_title(line.item),
                None if line.amount_nano is None else decimal_text(line.amount_nano),
                names.get(line.key_id, ""),
            )
            for line in shown
        ],
        "left_out": max(0, lines.count() - LINES),
        "forms": [form for form in CONTENT_TYPES if form != "pdf" or found.is_final],
    }
    return render(request, "console/invoice.html", context)


@require_GET
@tenant_page(Permission.BILLING_READ)
def file(request: HttpRequest, tenant: Tenant, invoice: int, form: str) -> HttpResponseBase:
    """The invoice in one of its forms."""
    found = invoice_get(invoice_id=invoice, tenant=tenant.pk)
    if form not in CONTENT_TYPES:
        raise NotFoundError(f"invoices have no form {form!r}")
    try:
        return invoice_download(request, found, form)
    except (ConflictError, InvalidInputError, UnavailableError) as error:
        status = 503 if isinstance(error, UnavailableError) else 409
        return HttpResponse(str(error), status=status, content_type="text/plain; charset=utf-8")
