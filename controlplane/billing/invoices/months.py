"""Open months of a tenant. Months are UTC and are closed in order."""

from __future__ import annotations

import datetime as dt

from controlplane.billing.invoices.lines import lines_make
from controlplane.billing.models import Invoice, LedgerHead, UsagePosting
from controlplane.billing.months import month_end, month_of
from controlplane.billing.price_list import PriceList
from controlplane.billing.quantities import quantity_marks


def months_open(*, tenant: str, before: dt.date) -> list[dt.date]:
    """Return the open months before `before` that would have invoice lines, in order.

    These have usage in the ledger, or usage without a price.
    """
    head = LedgerHead.objects.filter(tenant=tenant).first()
    closed = head.closed_through if head is not None else None
    start = dt.date.min if closed is None else month_end(closed) + dt.timedelta(days=1)
    if start >= before:
        return []
    rows = UsagePosting.objects.filter(tenant=tenant, month__gte=start, month__lt=before).order_by("month")
    booked = set(rows.values_list("month", flat=True).distinct())
    days = quantity_marks(tenant=tenant, start=start, end=before - dt.timedelta(days=1))
    if not (used := {month_of(day) for day in days} - booked):
        return sorted(booked)
    prices = PriceList.load()
    invoices = {month: Invoice(tenant=tenant, month=month) for month in used}
    unpriced = {month for month, made in invoices.items() if lines_make(invoice=made, prices=prices)}
    return sorted(booked | unpriced)
