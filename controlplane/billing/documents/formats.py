"""A document as CSV, JSON, Parquet or PDF."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final, Literal

from django.http import HttpRequest, StreamingHttpResponse

from controlplane.billing.documents.document import AnyDocument
from controlplane.billing.documents.pdfs import pdf_pieces, pdf_ready
from controlplane.billing.renderers import cell
from controlplane.errors import ConflictError, UnavailableError
from controlplane.platform.http.streaming import streamed

Format = Literal["csv", "json", "parquet", "pdf"]
CONTENT_TYPES: Final[dict[Format, str]] = {
    "csv": "text/csv; charset=utf-8",
    "json": "application/json",
    "parquet": "application/vnd.apache.parquet",
    "pdf": "application/pdf",
}
_INTEGERS: Final = ("position", "invoice_position", "quantity", "unit_nano", "per", "amount_nano")
_BOOLEANS: Final = ("adjusts", "unpriced")


def document_download(request: HttpRequest, document: AnyDocument, form: Format) -> StreamingHttpResponse:
    """Stream the document in a file format.

    Raises:
        ConflictError: the PDF of a draft is requested.
        UnavailableError: the PDF is not made yet; a retry helps.
    """
    pieces, name = _pieces(document, form), f"{document.name}.{form}"
    return streamed(request, pieces, content_type=CONTENT_TYPES[form], file_name=name)


def _pieces(document: AnyDocument, form: Format) -> Iterator[bytes]:
    match form:
        case "csv":
            return document_csv(document)
        case "json":
            return iter([document_json(document)])
        case "parquet":
            return iter([document_parquet(document)])
        case "pdf":
            return _stored_pdf(document)


def _stored_pdf(document: AnyDocument) -> Iterator[bytes]:
    if not document.is_final:
        raise ConflictError("a draft has no PDF: finalize it, or download the CSV")
    row = pdf_ready(document)
    if row is None:
        raise UnavailableError("the PDF is being rendered: try again in a moment")
    return pdf_pieces(row)


def document_csv(document: AnyDocument) -> Iterator[bytes]:
    """Yield the CSV, one row per line."""
    yield _csv_line(document.columns)
    for row in document.rows():
        yield _csv_line([_csv_value(row[name]) for name in document.columns])


def document_json(document: AnyDocument) -> bytes:
    """Return the totals and lines as JSON, with amounts both as integers and as decimal text."""
    return json.dumps({**document.header(), "lines": list(document.rows())}, indent=1).encode()


def document_parquet(document: AnyDocument) -> bytes:
    """Return the lines as columns, with 64-bit nano-units; the totals are in the schema's metadata."""
    # Import here: pyarrow costs 100 MB in a process that never writes Parquet.
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = dict.fromkeys(_INTEGERS, pa.int64()) | dict.fromkeys(_BOOLEANS, pa.bool_())
    types["amount"] = pa.decimal128(38, 9)
    schema = pa.schema(
        [(name, types.get(name, pa.string())) for name in document.columns],
        metadata={f"graftwork.{document.kind}": json.dumps(document.header())},
    )
    table = [
        {**row, "amount": None if row["amount"] is None else Decimal(row["amount"])}
        for row in document.rows()
    ]
    target = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(table, schema=schema), target)
    return target.getvalue()


def _csv_line(values: Any) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerow(values)
    return text.getvalue().encode()


def _csv_value(value: Any) -> Any:
    """Format a value for CSV; text that a spreadsheet would take for a formula is escaped."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case str() if not value.lstrip("-").replace(".", "", 1).isdigit():
            return cell(value)
        case _:
            return value
