"""What the tenant owes: its balance, invoices and credit notes."""

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
        """How the tenant stands."""
        return self._transport.read(Balance, "/billing")

    def invoices(self, **filters: Any) -> Iterator[Invoice]:
        """Its invoices, newest first. Filters: `status`, `month`, `page_size`."""
        return pages(self._transport, Invoice, "/invoices", **filters)

    def invoice(self, invoice: int) -> Invoice:
        """One, by its id. Raises NotFoundError."""
        return self._transport.read(Invoice, f"/invoices/{invoice}")

    def invoice_lines(self, invoice: int) -> Iterator[InvoiceLine]:
        """An invoice's lines in their order."""
        return pages(self._transport, InvoiceLine, f"/invoices/{invoice}/lines")

    def invoice_file(self, invoice: int, to: Path, *, form: Form = "csv") -> Path:
        """Writes the invoice as a file; a PDF that is being made is waited for. Raises GraftworkError."""
        return self._file(f"/invoices/{invoice}/file", to, form)

    def credit_notes(self, **filters: Any) -> Iterator[CreditNote]:
        """Its credit notes, newest first. Filters: `invoice`, `reason`, `page_size`."""
        return pages(self._transport, CreditNote, "/credit-notes", **filters)

    def credit_note(self, credit_note: int) -> CreditNote:
        """One, by its id. Raises NotFoundError."""
        return self._transport.read(CreditNote, f"/credit-notes/{credit_note}")

    def credit_note_lines(self, credit_note: int) -> Iterator[CreditNoteLine]:
        """What it takes back of which line of the invoice, or (None) of the invoice as a whole."""
        return pages(self._transport, CreditNoteLine, f"/credit-notes/{credit_note}/lines")

    def credit_note_file(self, credit_note: int, to: Path, *, form: Form = "csv") -> Path:
        """Writes the credit note as a file, as `invoice_file` does."""
        return self._file(f"/credit-notes/{credit_note}/file", to, form)

    def tax_treatments(self) -> Iterator[TaxTreatment]:
        """How its invoices are taxed, and from which day on; newest first."""
        return pages(self._transport, TaxTreatment, "/billing/tax-treatments")

    def details(self) -> Iterator[BillingDetails]:
        """How documents name the tenant, and from which day on; newest first."""
        return pages(self._transport, BillingDetails, "/billing/details")

    def _file(self, path: str, to: Path, form: Form) -> Path:
        to.write_bytes(self._transport.send("GET", path, params={"form": form}).content)
        return to
