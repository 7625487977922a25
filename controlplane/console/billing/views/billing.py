"""The tenant's billing pages: balance, credits, budget, invoices and their files."""

from __future__ import annotations

from typing import Final

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render

from controlplane.billing import items
from controlplane.billing.credit_notes.selectors import credit_note_list
from controlplane.billing.documents.formats import CONTENT_TYPES
from controlplane.billing.invoices.document import InvoiceDocument
from controlplane.billing.invoices.selectors import invoice_get, invoice_list, key_names, line_list
from controlplane.billing.ledger.selectors import balance, grants_left, invoice_open_nano, invoices_open
from controlplane.billing.price_list import PriceList
from controlplane.billing.selectors import budget_notice_highest
from controlplane.billing.taxes.selectors import tax_title, treatment_list
from controlplane.billing.unpriced import unbilled_unpriced
from controlplane.console.billing.spend import budget_state
from controlplane.console.billing.views.credit_notes import notes_of
from controlplane.console.billing.views.parties import parties_context
from controlplane.console.downloads import document_file
from controlplane.console.pages import tenant_page
from controlplane.tenants.limits.selectors import tenant_limits_get
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Permission

SHOWN: Final = 60
"""Most invoices on the page: five years."""
LINES: Final = 500


@tenant_page(read=Permission.BILLING_READ)
def index(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """Show the tenant's balance and invoices."""
    prices = PriceList.load()
    found = balance(tenant=tenant.pk, currency=prices.currency())
    limits = tenant_limits_get(tenant=tenant)
    invoices = list(invoice_list(tenant=tenant.pk)[:SHOWN])
    unpaid = invoices_open(tenant=tenant.pk, invoices=invoices)
    context = {
        "currency": found.currency,
        "balance": found,
        "booked_minutes": int(settings.CELERY_BEAT_SCHEDULE["billing.post_usage"]["schedule"].seconds) // 60,
        "unpriced": unbilled_unpriced(tenant=tenant.pk),
        "taken_back": found.prepaid < 0,
        "credits": grants_left(tenant=tenant.pk),
        "budget_state": budget_state(limits=limits, prices=prices),
        "limits": limits,
        "notice": budget_notice_highest(limits=limits),
        "invoices": [(row, unpaid.get(row.pk, 0)) for row in invoices],
        "notes": credit_note_list(tenant=tenant.pk)[:SHOWN],
        "treatments": treatment_list(tenant=tenant.pk)[:SHOWN],
        **parties_context(tenant.pk),
    }
    return render(request, "console/billing.html", context)


@tenant_page(read=Permission.BILLING_READ)
def detail(request: HttpRequest, tenant: Tenant, invoice: int) -> HttpResponse:
    """Show one invoice, by its id: sums, lines and downloads."""
    found = invoice_get(invoice_id=invoice, tenant=tenant.pk)
    lines = line_list(invoice=found)
    shown = list(lines[:LINES])
    names = key_names(invoice=found, lines=shown)
    context = {
        "invoice": found,
        "open": invoice_open_nano(invoice=found),
        "tax_title": tax_title(found),
        "notes": notes_of(found),
        "lines": [(line, items.title(line.item), names[line.key_id]) for line in shown],
        "left_out": max(0, lines.count() - LINES),
        "forms": [form for form in CONTENT_TYPES if form != "pdf" or found.is_final],
    }
    return render(request, "console/invoice.html", context)


@tenant_page(read=Permission.BILLING_READ)
def file(request: HttpRequest, tenant: Tenant, invoice: int, form: str) -> HttpResponseBase:
    """Download the invoice in one of its formats."""
    found = invoice_get(invoice_id=invoice, tenant=tenant.pk)
    return document_file(request, InvoiceDocument(found), form)
