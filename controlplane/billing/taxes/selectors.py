"""Reads tax treatments."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

from django.db.models import Min, QuerySet

from controlplane.billing.models import Invoice, LedgerHead, TaxKind, TaxTreatment, UsagePosting
from controlplane.billing.months import month_after, month_end, month_of
from controlplane.platform.row_lookup import row_get


def treatment_list(*, tenant: str) -> QuerySet[TaxTreatment]:
    """The tenant's tax treatments, newest first."""
    return TaxTreatment.objects.filter(tenant=tenant).order_by("-starts", "-id")


def treatment_get(*, treatment_id: int, tenant: str | None = None) -> TaxTreatment:
    """Return a treatment of the tenant, or (None) of any tenant. Raises NotFoundError."""
    rows = TaxTreatment.objects.all() if tenant is None else treatment_list(tenant=tenant)
    return row_get(rows.filter(pk=treatment_id), f"there is no tax treatment {treatment_id}")


def rate_ahead(*, tenant: str, today: dt.date) -> Decimal | None:
    """Return the highest percentage that upcoming invoices will add; None without a treatment.

    An invoice uses the treatment of its month's last day, so one that starts within this month counts
    already.
    The open months up to this one count: which of them the prepaid balance will pay is not known yet.
    """
    first = last = month_of(today)
    rows = list(treatment_list(tenant=tenant).reverse())
    if not rows:
        return None
    head = LedgerHead.objects.filter(tenant=tenant).first()
    used = UsagePosting.objects.filter(tenant=tenant)
    if head is not None and head.closed_through is not None:
        first = last = max(last, month_after(head.closed_through))
        used = used.filter(month__gt=head.closed_through)
    first = min(first, used.aggregate(first=Min("month"))["first"] or first)
    end, rates = month_end(last), []
    for row, later in zip(rows, [*rows[1:], None], strict=True):
        # The first month's end on which this row is in force, unless a later row has replaced it by then.
        found = month_end(max(row.starts, first))
        if found <= end and (later is None or found < later.starts):
            rates.append(row.rate_percent)
    return max(rates, default=None)


def rate_text(rate_percent: Decimal) -> str:
    """Format a percentage: `19`, `8.875`."""
    return f"{rate_percent.normalize():f}"


def tax_title(invoice: Invoice) -> str:
    """Return the tax's line on documents: `VAT 19%`, `VAT, reverse charge`; empty without a treatment."""
    match invoice.tax_kind:
        case TaxKind.TAXED:
            return f"{invoice.tax_label} {rate_text(invoice.tax_rate_percent)}%"
        case TaxKind.REVERSE_CHARGE:
            return f"{invoice.tax_label}, reverse charge"
        case TaxKind.EXEMPT:
            return f"{invoice.tax_label}, exempt"
        case _:
            return ""
