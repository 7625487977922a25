"""An invoice as a document: every line with its exact amount."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django.db.models import QuerySet

from controlplane.billing import items
from controlplane.billing.currency import decimal_text, minor_text
from controlplane.billing.documents.document import Document
from controlplane.billing.invoices.selectors import key_names, line_list
from controlplane.billing.models import Invoice, InvoiceLine, InvoicePdf
from controlplane.billing.parties.selectors import PARTY_COLUMNS

_COPIED: Final = (
    "project",
    "key_id",
    "key_name",
    "adapter",
    "base_model",
    "backend",
    "item",
    "quantity",
    "unit_nano",
    "per",
    "amount_nano",
)


class InvoiceDocument(Document[Invoice, InvoiceLine]):
    """An invoice; an unpriced line is marked in a column and has no amount."""

    kind = "invoice"
    columns = ("position", "month", *_COPIED, "amount", "currency", "adjusts", "unpriced", *PARTY_COLUMNS)
    pdfs = InvoicePdf
    render_task = "billing.render_invoice"

    @property
    def invoice(self) -> Invoice:
        return self.record

    @property
    def is_final(self) -> bool:
        return self.record.is_final

    @property
    def name(self) -> str:
        """A name such as `acme-000012`, or `acme-2026-11-draft`."""
        return super().name if self.is_final else f"{self.record.tenant}-{self.record.month:%Y-%m}-draft"

    def header(self) -> dict[str, Any]:
        invoice = self.record
        sums = ("lines", "carried_in", "credits", "net", "tax", "prepaid", "shortfall", "due", "carried_out")
        return {
            "invoice": invoice.title,
            "number": invoice.number,
            "tenant": invoice.tenant,
            "month": f"{invoice.month:%Y-%m}",
            "status": invoice.status,
            "currency": invoice.currency,
            "finalized_at": invoice.finalized_at.isoformat() if invoice.finalized_at else None,
            "unpriced": invoice.unpriced,
            **{f"{name}_nano": getattr(invoice, f"{name}_nano") for name in sums},
            **self.tax_and_parties(),
            "due": minor_text(invoice.due_nano, invoice.currency).replace(",", ""),
        }

    def lines(self) -> QuerySet[InvoiceLine]:
        return line_list(invoice=self.record)

    def row(self, line: InvoiceLine) -> dict[str, Any]:
        amount = line.amount_nano
        return {
            "position": line.position,
            "month": f"{line.month:%Y-%m}",
            **{name: getattr(line, name) for name in _COPIED},
            "amount": None if amount is None else decimal_text(amount),
            "currency": self.record.currency,
            "adjusts": line.adjusts,
            "unpriced": amount is None,
        }

    def pdf_context(self, lines: Sequence[InvoiceLine]) -> dict[str, Any]:
        names = key_names(invoice=self.record, lines=lines)
        return {
            "lines": [
                {"line": line, "key": names[line.key_id], "title": items.title(line.item)} for line in lines
            ]
        }
