"""Billing: the tenant's balance, invoices and credit notes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from graftwork.models import (
    Balance,
    BillingDetails,
    CreditNote,
    CreditNoteLine,
    Invoice,
    InvoiceLine,
    TaxTreatment,
)
from graftwork.pages import pages
from graftwork.transport import Transport

Form = Literal["csv", "json", "parquet", "pdf"]


class Billing:
    """`client.billing`. Amounts are integers of nano-units (1e-9) of the currency."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def balance(self) -> Balance:
        """Returns the tenant's balance."""
        return self._transport.read(Balance, "/billing")

    def invoices(self, **filters: Any) -> Iterator[Invoice]:
        """Lists invoices, newest first. Filters: `status`, `month`, `page_size`."""
        return pages(self._transport, Invoice, "/invoices", **filters)

    def invoice(self, invoice: int) -> Invoice:
        """Returns an invoice by its id. Raises NotFoundError."""
        return self._transport.read(Invoice, f"/invoices/{invoice}")

    def invoice_lines(self, invoice: int) -> Iterator[InvoiceLine]:
        """Lists an invoice's lines in order."""
        return pages(self._transport, InvoiceLine, f"/invoices/{invoice}/lines")

    def invoice_file(self, invoice: int, to: Path, *, form: Form = "csv") -> Path:
        """Writes the invoice to a file; waits for a PDF that is being rendered. Raises GraftworkError."""
        return self._file(f"/invoices/{invoice}/file", to, form)

    def credit_notes(self, **filters: Any) -> Iterator[CreditNote]:
        """Lists credit notes, newest first. Filters: `invoice`, `reason`, `page_size`."""
        return pages(self._transport, CreditNote, "/credit-notes", **filters)

    def credit_note(self, credit_note: int) -> CreditNote:
        """Returns a credit note by its id. Raises NotFoundError."""
        return self._transport.read(CreditNote, f"/credit-notes/{credit_note}")

    def credit_note_lines(self, credit_note: int) -> Iterator[CreditNoteLine]:
        """Lists a credit note's lines; each credits an invoice line, or (position None) the invoice."""
        return pages(self._transport, CreditNoteLine, f"/credit-notes/{credit_note}/lines")

    def credit_note_file(self, credit_note: int, to: Path, *, form: Form = "csv") -> Path:
        """Writes the credit note as a file, as `invoice_file` does."""
        return self._file(f"/credit-notes/{credit_note}/file", to, form)

    def tax_treatments(self) -> Iterator[TaxTreatment]:
        """Lists tax treatments with the UTC days that they start on, newest first."""
        return pages(self._transport, TaxTreatment, "/billing/tax-treatments")

    def details(self) -> Iterator[BillingDetails]:
        """Lists billing details with the UTC days that they start on, newest first."""
        return pages(self._transport, BillingDetails, "/billing/details")

    def _file(self, path: str, to: Path, form: Form) -> Path:
        to.write_bytes(self._transport.send("GET", path, params={"form": form}).content)
        return to
