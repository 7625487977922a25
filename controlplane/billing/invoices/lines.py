"""Invoice lines: the month's usage postings by key, adapter, item and price."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterator, Sequence

from django.db.models import Sum
from django.db.models.functions import TruncMonth

from controlplane.billing import items
from controlplane.billing.ledger.posting import lacks_price, wanted
from controlplane.billing.models import Invoice, InvoiceLine, LedgerHead, UsagePosting
from controlplane.billing.months import month_end, month_of
from controlplane.billing.price_list import PriceList
from controlplane.billing.quantities import Subject, quantity_marks
from controlplane.tenants.selectors import api_key_names


def lines_make(*, invoice: Invoice, prices: PriceList) -> list[InvoiceLine]:
    """Build the invoice's lines from the ledger, unsaved: its month's own first, then adjustments.

    Unpriced usage makes lines with neither price nor amount. `prices` must be those that the month was booked
    with. With others, usage could be on neither kind of line, or on both.
    """
    lines = [*_priced(invoice), *_unpriced(invoice, prices)]
    lines.sort(
        key=lambda line: (
            line.month != invoice.month,
            line.month,
            line.adapter,
            line.base_model,
            line.key_id,
            line.project,
            line.backend,
            line.item,
            line.unit_nano or 0,
        )
    )
    for position, line in enumerate(lines, start=1):
        line.position = position
    return lines


def key_names_keep(lines: Sequence[InvoiceLine], *, tenant: str) -> None:
    """Copy the keys' current names into unsaved lines, so that a finalized invoice keeps them."""
    names = api_key_names(tenant=tenant, public_ids=[line.key_id for line in lines])
    for line in lines:
        line.key_name = names.get(line.key_id, "")


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


def _priced(invoice: Invoice) -> Iterator[InvoiceLine]:
    rows = UsagePosting.objects.filter(tenant=invoice.tenant, month=invoice.month).order_by()
    groups = rows.annotate(usage_month=TruncMonth("day")).values(
        "usage_month", *UsagePosting.KEY, "unit_nano", "per"
    )
    for row in groups.annotate(total=Sum("amount_nano"), count=Sum("quantity")):
        month, amount, quantity = row.pop("usage_month"), row.pop("total"), row.pop("count")
        # Skip usage that was booked and reversed within the same invoice.
        if amount or quantity:
            yield InvoiceLine(invoice=invoice, month=month, amount_nano=amount, quantity=quantity, **row)


def _unpriced(invoice: Invoice, prices: PriceList) -> Iterator[InvoiceLine]:
    end = month_end(invoice.month)
    sums: dict[Subject, int] = defaultdict(int)
    for day in quantity_marks(tenant=invoice.tenant, start=invoice.month, end=end):
        for subject, want in wanted(tenant=invoice.tenant, day=day, prices=prices).items():
            if lacks_price(subject, want):
                sums[subject] += want.quantity
    for subject, quantity in sums.items():
        key = {name: getattr(subject, name) for name in UsagePosting.KEY}
        yield InvoiceLine(
            invoice=invoice, month=invoice.month, quantity=quantity, per=items.PER[subject.item], **key
        )
