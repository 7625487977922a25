"""The contract of a document of billing: a record with totals, lines, a seller and a buyer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from django.db.models import QuerySet

from controlplane.billing.models import CreditNote, CreditNoteLine, Invoice, InvoiceLine, StoredPdf
from controlplane.billing.parties.selectors import flat_parties

Record = TypeVar("Record", Invoice, CreditNote)
Line = TypeVar("Line", InvoiceLine, CreditNoteLine)


class Document(ABC, Generic[Record, Line]):
    """An invoice or a credit note, as its files show it.

    Attributes:
        kind: `invoice` or `credit_note`, in names of metadata, templates and folders.
        columns: of a file's lines, in order.
        pdfs: model of the stored PDFs.
        render_task: Celery task that renders the PDF; its argument is `<kind>_id`.
    """

    kind: ClassVar[str]
    columns: ClassVar[tuple[str, ...]]
    pdfs: ClassVar[type[StoredPdf]]
    render_task: ClassVar[str]

    def __init__(self, record: Record) -> None:
        self.record: Record = record

    @property
    @abstractmethod
    def invoice(self) -> Invoice:
        """The invoice whose month and tax the document has."""

    @property
    def is_final(self) -> bool:
        """Only final documents have a PDF."""
        return True

    @property
    def name(self) -> str:
        """The name of a file, without its extension."""
        return self.record.title.lower()

    @abstractmethod
    def header(self) -> dict[str, Any]:
        """Return the fields above the lines: numbers, totals, tax, seller and buyer."""

    @abstractmethod
    def lines(self) -> QuerySet[Line]:
        """The lines in order."""

    @abstractmethod
    def row(self, line: Line) -> dict[str, Any]:
        """Return a line's values by column, without the seller and the buyer."""

    @abstractmethod
    def pdf_context(self, lines: Sequence[Line]) -> dict[str, Any]:
        """Return the PDF template's context for the record and these lines."""

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the lines as dicts by column; each repeats the seller and the buyer."""
        parties = flat_parties(self.record)
        for line in self.lines().iterator(chunk_size=2000):
            yield {**self.row(line), **parties}

    def tax_and_parties(self) -> dict[str, Any]:
        """Return the part of the header with the tax, the seller and the buyer."""
        return {
            "tax_kind": self.invoice.tax_kind,
            "tax_label": self.invoice.tax_label,
            "tax_rate_percent": str(self.invoice.tax_rate_percent),
            "tax_number": self.invoice.tax_number,
            "tax_text": self.invoice.tax_text,
            "seller": self.record.seller,
            "buyer": self.record.buyer,
        }


AnyDocument = Document[Any, Any]
