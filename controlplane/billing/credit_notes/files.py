"""A credit note as CSV, JSON, Parquet or PDF."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final

from django.http import HttpRequest, StreamingHttpResponse

from controlplane.billing.credit_notes.rendering import pdf_ready
from controlplane.billing.credit_notes.selectors import note_line_list
from controlplane.billing.currency import decimal_text
from controlplane.billing.invoices.files import CONTENT_TYPES, Form, csv_line, csv_value
from controlplane.billing.models import CreditNote
from controlplane.billing.parties.selectors import PARTY_COLUMNS, flat_parties
from controlplane.billing.pdfs import pdf_pieces
from controlplane.errors import UnavailableError
from controlplane.platform.http.streaming import streamed

_LINE_TEXTS: Final = ("project", "key_id", "key_name", "adapter", "base_model", "backend", "item")
COLUMNS: Final = (
    "position", "invoice_position", "month", *_LINE_TEXTS, "amount_nano", "amount", "currency",
    "voids", *PARTY_COLUMNS,
)  # fmt: skip


def credit_note_download(request: HttpRequest, note: CreditNote, form: Form) -> StreamingHttpResponse:
    """Stream the credit note in a file format. Raises UnavailableError while the PDF is being made; retry."""
    name = f"{note.title.lower()}.{form}"
    return streamed(request, _pieces(note, form), content_type=CONTENT_TYPES[form], file_name=name)


def _pieces(note: CreditNote, form: Form) -> Iterator[bytes]:
    match form:
        case "csv":
            return credit_note_csv(note)
        case "json":
            return iter([credit_note_json(note)])
        case "parquet":
            return iter([credit_note_parquet(note)])
        case "pdf":
            document = pdf_ready(credit_note=note)
            if document is None:
                raise UnavailableError("the PDF is being made: ask again in a moment")
            return pdf_pieces(document)


def credit_note_csv(note: CreditNote) -> Iterator[bytes]:
    """Yield the CSV, one row per line; a line on the invoice as a whole has no invoice position."""
    yield csv_line(COLUMNS)
    for row in rows(note):
        yield csv_line(csv_value(row[name]) for name in COLUMNS)


def credit_note_json(note: CreditNote) -> bytes:
    """Return the totals and lines as JSON, with amounts both as integers and as decimal text."""
    return json.dumps({**header(note), "lines": list(rows(note))}, indent=1).encode()


def credit_note_parquet(note: CreditNote) -> bytes:
    """Return the lines as columns, with 64-bit nano-units; the totals are in the schema's metadata."""
    # Import here: pyarrow costs 100 MB in a process that never writes Parquet.
    import pyarrow as pa
    import pyarrow.parquet as pq

    integers, decimals = ("position", "invoice_position", "amount_nano"), ("amount",)
    kinds = dict.fromkeys(integers, pa.int64()) | dict.fromkeys(decimals, pa.decimal128(38, 9))
    fields = [(name, kinds.get(name, pa.string())) for name in COLUMNS]
    schema = pa.schema(fields, metadata={"graftwork.credit_note": json.dumps(header(note))})
    table = [{**row, "amount": Decimal(row["amount"])} for row in rows(note)]
    target = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(table, schema=schema), target)
    return target.getvalue()


def header(note: CreditNote) -> dict[str, Any]:
    """Return the fields above the lines: numbers, totals, tax, seller and buyer."""
    invoice = note.invoice
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
        "tax_kind": invoice.tax_kind,
        "tax_label": invoice.tax_label,
        "tax_rate_percent": str(invoice.tax_rate_percent),
        "tax_number": invoice.tax_number,
        "tax_text": invoice.tax_text,
        "seller": note.seller,
        "buyer": note.buyer,
        "total": decimal_text(note.total_nano),
    }


def rows(note: CreditNote) -> Iterator[dict[str, Any]]:
    """Yield the lines as dicts by column; each repeats the seller and the buyer."""
    parties = flat_parties(note)
    for line in note_line_list(credit_note=note).iterator(chunk_size=2000):
        invoice_line = line.invoice_line
        yield {
            "position": line.position,
            "invoice_position": invoice_line.position if invoice_line else None,
            "month": f"{(invoice_line or note.invoice).month:%Y-%m}",
            **{name: getattr(invoice_line, name) if invoice_line else "" for name in _LINE_TEXTS},
            "amount_nano": line.amount_nano,
            "amount": decimal_text(line.amount_nano),
            "currency": note.currency,
            "voids": note.voids.title if note.voids else "",
            **parties,
        }
