"""An invoice's file as an HTTP response."""

from __future__ import annotations

from collections.abc import Iterator

from django.http import HttpRequest, StreamingHttpResponse

from controlplane.billing.invoices.files import (
    CONTENT_TYPES,
    Form,
    file_name,
    invoice_csv,
    invoice_json,
    invoice_parquet,
)
from controlplane.billing.invoices.rendering import pdf_ready
from controlplane.billing.models import Invoice
from controlplane.billing.pdfs import pdf_pieces
from controlplane.errors import ConflictError, UnavailableError
from controlplane.platform.http.streaming import streamed


def invoice_download(request: HttpRequest, invoice: Invoice, form: Form) -> StreamingHttpResponse:
    """Stream the invoice in a file format.

    Raises:
        ConflictError: the PDF of a draft is requested.
        UnavailableError: the PDF is not made yet; a retry helps.
    """
    pieces = _pieces(invoice, form)
    return streamed(request, pieces, content_type=CONTENT_TYPES[form], file_name=file_name(invoice, form))


def _pieces(invoice: Invoice, form: Form) -> Iterator[bytes]:
    match form:
        case "csv":
            return invoice_csv(invoice)
        case "json":
            return iter([invoice_json(invoice)])
        case "parquet":
            return iter([invoice_parquet(invoice)])
        case "pdf":
            return _stored(invoice)


def _stored(invoice: Invoice) -> Iterator[bytes]:
    if not invoice.is_final:
        raise ConflictError("a draft has no PDF: finalize it, or take the CSV")
    document = pdf_ready(invoice=invoice)
    if document is None:
        raise UnavailableError("the PDF is being made: ask again in a moment")
    return pdf_pieces(document)
