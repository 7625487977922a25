"""An invoice as CSV, JSON or Parquet: every line with its exact amount."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final, Literal

from controlplane.billing import items
from controlplane.billing.currency import decimal_text, minor_text
from controlplane.billing.invoices.selectors import line_list
from controlplane.billing.models import Invoice
from controlplane.billing.parties.selectors import PARTY_COLUMNS, flat_parties
from controlplane.billing.renderers import cell

Form = Literal["csv", "json", "parquet", "pdf"]
CONTENT_TYPES: Final[dict[Form, str]] = {
    "csv": "text/csv; charset=utf-8",
    "json": "application/json",
    "parquet": "application/vnd.apache.parquet",
    "pdf": "application/pdf",
}
_TEXTS: Final = ("month", "project", "key_id", "key_name", "adapter", "base_model", "backend", "item")
_NUMBERS: Final = ("quantity", "unit_nano", "per", "amount_nano")
COLUMNS: Final = (
    "position", *_TEXTS, *_NUMBERS, "amount", "currency", "adjusts", "unpriced", *PARTY_COLUMNS,
)  # fmt: skip


def file_name(invoice: Invoice, form: Form) -> str:
    """Return a name such as `acme-000012.pdf`, or `acme-2026-11-draft.csv`."""
    name = invoice.title.lower() if invoice.is_final else f"{invoice.tenant}-{invoice.month:%Y-%m}-draft"
    return f"{name}.{form}"


def invoice_csv(invoice: Invoice) -> Iterator[bytes]:
    """Yield the CSV, one row per line; an unpriced line is marked in a column and has no amount."""
    yield csv_line(COLUMNS)
    for row in rows(invoice):
        yield csv_line(csv_value(row[name]) for name in COLUMNS)


def invoice_json(invoice: Invoice) -> bytes:
    """Return the totals and lines as JSON, with amounts both as integers and as decimal text."""
    return json.dumps({**header(invoice), "lines": list(rows(invoice))}, indent=1).encode()


def invoice_parquet(invoice: Invoice) -> bytes:
    """Return the lines as columns, with 64-bit nano-units; the totals are in the schema's metadata."""
    # Import here: pyarrow costs 100 MB in a process that never writes Parquet.
    import pyarrow as pa
    import pyarrow.parquet as pq

    fields = [("position", pa.int64())]
    fields += [(name, pa.string()) for name in _TEXTS] + [(name, pa.int64()) for name in _NUMBERS]
    fields += [("amount", pa.decimal128(38, 9)), ("currency", pa.string())]
    fields += [("adjusts", pa.bool_()), ("unpriced", pa.bool_())]
    fields += [(name, pa.string()) for name in PARTY_COLUMNS]
    schema = pa.schema(fields, metadata={"graftwork.invoice": json.dumps(header(invoice))})
    table = [
        {**row, "amount": None if row["amount"] is None else Decimal(row["amount"])} for row in rows(invoice)
    ]
    target = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(table, schema=schema), target)
    return target.getvalue()


def header(invoice: Invoice) -> dict[str, Any]:
    """Return the fields above the lines: number, month, totals, tax, seller and buyer."""
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
        "tax_kind": invoice.tax_kind,
        "tax_label": invoice.tax_label,
        "tax_rate_percent": str(invoice.tax_rate_percent),
        "tax_number": invoice.tax_number,
        "tax_text": invoice.tax_text,
        "seller": invoice.seller,
        "buyer": invoice.buyer,
        "due": minor_text(invoice.due_nano, invoice.currency).replace(",", ""),
    }


def rows(invoice: Invoice) -> Iterator[dict[str, Any]]:
    """Yield the lines as dicts by column; each repeats the seller and the buyer."""
    parties = flat_parties(invoice)
    for line in line_list(invoice=invoice).iterator(chunk_size=2000):
        amount = line.amount_nano
        yield {
            "position": line.position,
            "month": f"{line.month:%Y-%m}",
            **{name: getattr(line, name) for name in (*_TEXTS[1:], *_NUMBERS)},
            "amount": None if amount is None else decimal_text(amount),
            "currency": invoice.currency,
            "adjusts": line.adjusts,
            "unpriced": amount is None,
            **parties,
        }


def item_title(item: str) -> str:
    """Return an item's display name."""
    return items.TITLES.get(item, item)


def csv_line(values: Any) -> bytes:
    """Encode one row of a CSV file."""
    text = io.StringIO()
    csv.writer(text).writerow(values)
    return text.getvalue().encode()


def csv_value(value: Any) -> Any:
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
