"""Reads invoices."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable
from typing import Any

from django.db.models import QuerySet

from controlplane.billing.currency import decimal_text, minor_text
from controlplane.billing.models import Invoice, InvoiceLine
from controlplane.platform.row_lookup import row_get
from controlplane.tenants.selectors import api_key_names


def invoice_list(*, tenant: str | None, status: str = "") -> QuerySet[Invoice]:
    """The tenant's invoices, or (None) all tenants', or those of one status, newest first."""
    invoices = Invoice.objects.order_by("-id")
    invoices = invoices.filter(status=status) if status else invoices
    return invoices if tenant is None else invoices.filter(tenant=tenant)


def invoice_list_by_id(*, ids: Collection[int]) -> QuerySet[Invoice]:
    """The invoices with these ids, newest first."""
    return Invoice.objects.filter(pk__in=ids).order_by("-id")


def invoice_list_to_finalize(*, today: dt.date) -> QuerySet[Invoice]:
    """All tenants' drafts of months that ended before `today`, oldest first."""
    drafts = Invoice.objects.filter(status=Invoice.Status.DRAFT, month__lt=today.replace(day=1))
    return drafts.order_by("month", "id")


def invoice_get(*, invoice_id: int, tenant: str | None = None) -> Invoice:
    """Return an invoice of the tenant, or (None) of any tenant. Raises NotFoundError."""
    return row_get(invoice_list(tenant=tenant).filter(pk=invoice_id), f"there is no invoice {invoice_id}")


def line_list(*, invoice: Invoice) -> QuerySet[InvoiceLine]:
    """The invoice's lines in order."""
    return InvoiceLine.objects.filter(invoice=invoice).select_related("invoice").order_by("position")


def key_names(*, invoice: Invoice, lines: Iterable[InvoiceLine]) -> dict[str, str]:
    """Map the lines' key ids to names: the stored name, or for older invoices the current one."""
    stored = {line.key_id: line.key_name for line in lines}
    missing = [key_id for key_id, name in stored.items() if name is None]
    found = api_key_names(tenant=invoice.tenant, public_ids=missing) if missing else {}
    return {key_id: found.get(key_id, "") if name is None else name for key_id, name in stored.items()}


def invoice_told(invoice: Invoice) -> dict[str, Any]:
    """Return the webhook payload of an invoice."""
    return {
        "invoice": invoice.pk,
        "title": invoice.title,
        "month": f"{invoice.month:%Y-%m}",
        "status": invoice.status,
        "currency": invoice.currency,
        "total": decimal_text(invoice.lines_nano),
        "tax": decimal_text(invoice.tax_nano),
        "shortfall": minor_text(invoice.shortfall_nano, invoice.currency).replace(",", ""),
        "due": minor_text(invoice.due_nano, invoice.currency).replace(",", ""),
        "unpriced": invoice.unpriced,
    }
