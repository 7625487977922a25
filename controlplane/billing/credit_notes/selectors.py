"""Reads credit notes, and the amounts of invoices that can still be credited."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet, Sum

from controlplane.billing.currency import decimal_text
from controlplane.billing.models import CreditNote, CreditNoteLine, Invoice, InvoiceLine
from controlplane.platform.row_lookup import row_get


@dataclass(frozen=True, slots=True)
class Left:
    """Amounts of an invoice that can still be credited, in nano-units."""

    net: int
    tax: int


def credit_note_list(*, tenant: str | None, invoice: Invoice | None = None) -> QuerySet[CreditNote]:
    """List the credit notes of a tenant or (None) of all, or those of one invoice, newest first."""
    notes = CreditNote.objects.select_related("invoice", "voids").prefetch_related("voidings").order_by("-id")
    notes = notes if tenant is None else notes.filter(tenant=tenant)
    return notes if invoice is None else notes.filter(invoice=invoice)


def credit_note_get(*, credit_note_id: int, tenant: str | None = None) -> CreditNote:
    """Return a credit note of the tenant, or (None) of any tenant. Raises NotFoundError."""
    rows = credit_note_list(tenant=tenant).filter(pk=credit_note_id)
    return row_get(rows, f"there is no credit note {credit_note_id}")


def note_line_list(*, credit_note: CreditNote) -> QuerySet[CreditNoteLine]:
    """The credit note's lines in order, each with its invoice line."""
    lines = CreditNoteLine.objects.filter(credit_note=credit_note)
    return lines.select_related("invoice_line").order_by("position")


def in_force(*, invoice: Invoice) -> QuerySet[CreditNote]:
    """The invoice's credit notes that are not voided and do not void another."""
    return CreditNote.objects.filter(invoice=invoice, voids=None, voidings=None)


def left_of(*, invoice: Invoice) -> Left:
    """Return the net and tax of a finalized invoice that its credit notes have left."""
    sums = in_force(invoice=invoice).aggregate(net=Sum("net_nano"), tax=Sum("tax_nano"))
    return Left(invoice.net_nano - (sums["net"] or 0), invoice.tax_nano - (sums["tax"] or 0))


def line_left(*, lines: Iterable[InvoiceLine]) -> dict[int, int]:
    """Map invoice line ids to the nano-units, without tax, that can still be credited.

    An unpriced line has 0, a correcting line a negative amount.
    """
    amounts = {line.pk: line.amount_nano or 0 for line in lines}
    credited = CreditNoteLine.objects.filter(
        invoice_line__in=list(amounts), credit_note__voids=None, credit_note__voidings=None
    )
    credited = credited.order_by()
    for row in credited.values("invoice_line").annotate(total=Sum("amount_nano")):
        amounts[row["invoice_line"]] -= row["total"]
    return amounts


def credit_note_told(note: CreditNote, invoice: Invoice) -> dict[str, Any]:
    """Return the webhook payload of a credit note."""
    return {
        "credit_note": note.pk,
        "title": note.title,
        "invoice": invoice.pk,
        "invoice_title": invoice.title,
        "reason": note.reason,
        "currency": note.currency,
        "net": decimal_text(note.net_nano),
        "tax": decimal_text(note.tax_nano),
        "total": decimal_text(note.total_nano),
        "pre_payment": decimal_text(note.pre_payment_nano),
        "post_payment": decimal_text(note.post_payment_nano),
        "post_payment_as": note.post_payment_as,
        "voids": note.voids_id,
    }
