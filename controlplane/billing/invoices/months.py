"""A tenant's months: which are open, and where they end. Months are UTC's, and are closed in their order."""

from __future__ import annotations

import datetime as dt

from controlplane.billing.invoices.lines import lines_make
from controlplane.billing.models import Invoice, LedgerHead, UsagePosting
from controlplane.billing.months import month_end, month_of
from controlplane.billing.price_list import PriceList
from controlplane.billing.quantities import quantity_marks


def months_open(*, tenant: str, before: dt.date) -> list[dt.date]:
    """Months before that one that are not closed and have something to say on an invoice, in order.

    That is what is in the books, and usage that has no price yet.
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
    saying = {month for month, made in invoices.items() if lines_make(invoice=made, prices=prices)}
    return sorted(booked | saying)
