"""URLs of billing."""

from __future__ import annotations

from django.urls import path

from controlplane.console.billing.views import (
    billing,
    books,
    credit_notes,
    fleet_bill,
    parties,
    price_books,
    savings,
    taxes,
)

tenant_urls = [
    path("billing/", billing.index, name="billing"),
    path("billing/savings/", savings.tenant_savings, name="savings"),
    path("billing/journal/", books.journal, name="journal"),
    path("billing/details", parties.own, name="billing-details"),
    path("billing/invoices/<int:invoice>/", billing.detail, name="invoice"),
    path("billing/invoices/<int:invoice>/<slug:form>", billing.file, name="invoice-file"),
    path("billing/credit-notes/<int:credit_note>/", credit_notes.detail, name="credit-note"),
    path("billing/credit-notes/<int:credit_note>/<slug:form>", credit_notes.file, name="credit-note-file"),
]
urls = [
    path("staff/tenants/<slug:slug>/books/", books.index, name="staff-books"),
    path("staff/entries/<int:entry>/reverse", books.reverse, name="staff-entry-reverse"),
    path("staff/tenants/<slug:slug>/tax", taxes.add, name="staff-tax"),
    path("staff/tenants/<slug:slug>/billing-details", parties.tenant, name="staff-billing-details"),
    path("staff/credit-notes/<int:credit_note>/", credit_notes.staff_detail, name="staff-credit-note"),
    path("staff/credit-notes/<int:credit_note>/void", credit_notes.void, name="staff-credit-note-void"),
    path("staff/seller/", parties.seller, name="staff-seller"),
    path("staff/tax-treatments/<int:treatment>/remove", taxes.remove, name="staff-tax-remove"),
    path("staff/price-books/", price_books.index, name="staff-price-books"),
    path("staff/price-books/<str:name>/", price_books.detail, name="staff-price-book"),
    path("staff/price-books/<str:name>/add", price_books.add, name="staff-price-add"),
    path("staff/invoices/", price_books.invoices, name="staff-invoices"),
    path("staff/invoices/draft", books.draft, name="staff-invoice-draft"),
    path("staff/invoices/<int:invoice>/payment", books.pay, name="staff-invoice-pay"),
    path("staff/invoices/<int:invoice>/", credit_notes.invoice, name="staff-invoice"),
    path("staff/invoices/<int:invoice>/credit", credit_notes.issue, name="staff-invoice-credit"),
    path("staff/invoices/<int:invoice>/finalize", price_books.finalize, name="staff-invoice-finalize"),
    path("staff/fleet-bill/", fleet_bill.attribution, name="staff-fleet-bill"),
    path("staff/instance-prices/", fleet_bill.prices, name="staff-instance-prices"),
    path("staff/instance-prices/aws", fleet_bill.prices_from_aws, name="staff-instance-prices-aws"),
    path("staff/savings/", savings.index, name="staff-savings"),
    path("staff/blended-price/", savings.blended, name="staff-blended-price"),
]
