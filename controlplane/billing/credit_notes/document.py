"""A credit note as a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django.db.models import QuerySet

from controlplane.billing import items
from controlplane.billing.credit_notes.selectors import note_line_list
from controlplane.billing.currency import decimal_text
from controlplane.billing.documents.document import Document
from controlplane.billing.models import CreditNote, CreditNoteLine, CreditNotePdf, Invoice
from controlplane.billing.parties.selectors import PARTY_COLUMNS

_COPIED: Final = ("project", "key_id", "key_name", "adapter", "base_model", "backend", "item")


class CreditNoteDocument(Document[CreditNote, CreditNoteLine]):
    """A credit note; a line on the invoice as a whole has no invoice position."""

    kind = "credit_note"
    columns = (
        "position",
        "invoice_position",
        "month",
        *_COPIED,
        "amount_nano",
        "amount",
        "currency",
        "voids",
        *PARTY_COLUMNS,
    )
    pdfs = CreditNotePdf
    render_task = "billing.render_credit_note"

    @property
    def invoice(self) -> Invoice:
        return self.record.invoice

    def header(self) -> dict[str, Any]:
        note, invoice = self.record, self.invoice
        amounts = ("net", "tax", "total", "pre_payment", "post_payment")
        return {
            "credit_note": note.title,
            "number": note.number,
            "invoice": invoice.title,
            "tenant": note.tenant,
            "month": f"{invoice.month:%Y-%m}",
            "reason": note.reason,
            "memo": note.memo,
            "currency": note.currency,
            "issued_at": note.issued_at.isoformat(),
            "voids": note.voids.title if note.voids else None,
            **{f"{name}_nano": getattr(note, f"{name}_nano") for name in amounts},
            "post_payment_as": note.post_payment_as,
            **self.tax_and_parties(),
            "total": decimal_text(note.total_nano),
        }

    def lines(self) -> QuerySet[CreditNoteLine]:
        return note_line_list(credit_note=self.record)

    def row(self, line: CreditNoteLine) -> dict[str, Any]:
        note, invoice_line = self.record, line.invoice_line
        return {
            "position": line.position,
            "invoice_position": invoice_line.position if invoice_line else None,
            "month": f"{(invoice_line or note.invoice).month:%Y-%m}",
            **{name: getattr(invoice_line, name) if invoice_line else "" for name in _COPIED},
            "amount_nano": line.amount_nano,
            "amount": decimal_text(line.amount_nano),
            "currency": note.currency,
            "voids": note.voids.title if note.voids else "",
        }

    def pdf_context(self, lines: Sequence[CreditNoteLine]) -> dict[str, Any]:
        return {
            "note": self.record,
            "lines": [
                (
                    line.invoice_line,
                    items.title(line.invoice_line.item) if line.invoice_line else "",
                    line.amount_nano,
                )
                for line in lines
            ],
        }
