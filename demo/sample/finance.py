"""Sample billing: details of both parties, a paid, a due and a draft invoice, and a budget that warns."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Final

from django.utils import timezone

from controlplane.billing.invoices.services import invoice_draft, invoice_finalize
from controlplane.billing.ledger.credits import payment_record
from controlplane.billing.models import Invoice, JournalEntry
from controlplane.billing.months import month_of
from controlplane.billing.parties.selectors import SELLER, party_list
from controlplane.billing.parties.services import party_set
from controlplane.billing.selectors import spent_nano
from controlplane.tenants.limits.models import ScopeLimits
from controlplane.tenants.limits.selectors import tenant_limits_get
from controlplane.tenants.limits.services import tenant_limits_set
from controlplane.tenants.models import Tenant

DETAILS: Final = {
    SELLER: {
        "legal_name": "Graftwork Cloud GmbH (sample)",
        "address": "Hafenstrasse 12\n20457 Hamburg\nGermany",
        "contact": "billing@graftwork.example",
        "tax_number": "DE123456789",
        "payment_text": "Payable within 14 days. IBAN DE02 1203 0000 0000 2020 51.",
    },
    "acme": {
        "legal_name": "Acme Harbour Ltd. (sample)",
        "address": "1 Quay Street\nBristol BS1 4XE\nUnited Kingdom",
        "contact": "ada@acme.example",
        "reference": "PO-2207",
    },
    "globex": {
        "legal_name": "Globex Theatre Inc. (sample)",
        "address": "500 Broadway\nNew York, NY 10012\nUSA",
        "contact": "grace@globex.example",
        "reference": "PO-0815",
    },
}
"""Billing details by tenant."""
_ALERT_PERCENT: Final = 84
_BUDGET_STEP_NANO: Final = 50_000_000
_LEAST_BUDGET_NANO: Final = 1_000_000_000


def details_add(tenants: Sequence[Tenant]) -> None:
    """Give the seller and the tenants billing details, unless they have some."""
    for party in (SELLER, *(tenant.pk for tenant in tenants)):
        if party in DETAILS and not party_list(tenant=party).exists():
            party_set(tenant=party, values=DETAILS[party])


def invoice_close(tenant: Tenant, month: dt.date) -> None:
    """Draft and finalize the month's invoice."""
    found = Invoice.objects.filter(tenant=tenant.pk, month=month).first()
    if found is None or not found.is_final:
        invoice_finalize(invoice=invoice_draft(tenant=tenant.pk, month=month))


def invoice_pay(tenant: Tenant, month: dt.date) -> None:
    """Record the payment of the month's invoice."""
    invoice = Invoice.objects.get(tenant=tenant.pk, month=month)
    if invoice.due_nano and not JournalEntry.objects.filter(invoice=invoice, kind="payment").exists():
        payment_record(
            tenant=tenant, amount_nano=invoice.due_nano, invoice=invoice, memo="Bank transfer (sample)"
        )


def invoice_draft_current(tenant: Tenant) -> None:
    """Draft the invoice of the month that runs."""
    invoice_draft(tenant=tenant.pk, month=month_of(timezone.now().date()))


def budget_add(tenant: Tenant) -> None:
    """Set a monthly budget that this month's usage has nearly reached, unless the tenant has one."""
    limits = tenant_limits_get(tenant=tenant)
    if limits.budget_nano is not None:
        return
    today = timezone.now().date()
    spent = spent_nano(tenant=tenant.pk, key_id=None, start=month_of(today), end=today)
    budget = spent * 100 // _ALERT_PERCENT // _BUDGET_STEP_NANO * _BUDGET_STEP_NANO
    values = {name: getattr(limits, name) for name in ScopeLimits.FIELDS}
    values |= {"budget_nano": max(_LEAST_BUDGET_NANO, budget), "budget_period": ScopeLimits.Period.MONTH}
    tenant_limits_set(tenant=tenant, **values)
