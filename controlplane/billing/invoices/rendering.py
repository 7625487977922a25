"""A finalized invoice's PDF: rendered by a task, kept in the artifact store, made anew if it gets lost."""

from __future__ import annotations

import logging
from typing import Any, Final

from django.template.loader import render_to_string

from controlplane.billing.invoices.currency import decimal_text, minor_text
from controlplane.billing.invoices.files import item_title
from controlplane.billing.invoices.selectors import line_list
from controlplane.billing.models import Invoice, InvoicePdf
from controlplane.billing.pdfs import pdf as pdf
from controlplane.billing.pdfs import pdf_claim, pdf_found, pdf_keep, pdfs_due
from controlplane.billing.taxes.selectors import tax_title
from controlplane.queue import enqueue
from controlplane.tenants.models import Tenant
from controlplane.tenants.selectors import api_key_names

logger = logging.getLogger(__name__)

MOST_LINES: Final = 1000
"""Lines that a PDF shows, in about a minute; the other forms have them all."""
RENDER_TASK: Final = "billing.render_invoice"


def invoice_render(*, invoice_id: int) -> bool:
    """Makes the PDF of a finalized invoice and keeps it; False when that is not due now.

    Who makes it claims it first. What goes wrong is tried again later, and longer and longer after that.
    """
    row = pdf_claim(InvoicePdf, invoice_id)
    if row is None:
        return False
    invoice = row.invoice
    document = pdf(html(invoice))
    folder = f"invoices/{invoice.tenant}/{invoice.pk}"
    return pdf_keep(row, folder=folder, title=invoice.title, document=document)


def invoices_render_due() -> int:
    """Makes the PDFs that are due; how many. One that cannot be made holds up no other."""
    count = 0
    for invoice_id in pdfs_due(InvoicePdf):
        try:
            count += invoice_render(invoice_id=invoice_id)
        except Exception:
            logger.exception("the PDF of invoice %d is not made; it is tried again", invoice_id)
    return count


def pdf_ready(*, invoice: Invoice) -> InvoicePdf | None:
    """The document of a finalized invoice; None while it is made. One that got lost is made anew, once."""

    def lost() -> None:
        logger.error("the PDF of %s is lost from the artifact store: it is made anew", invoice)
        enqueue(RENDER_TASK, invoice_id=invoice.pk)

    return pdf_found(InvoicePdf.objects.get(invoice=invoice), lost=lost)


def html(invoice: Invoice) -> str:
    """The document that is rendered."""
    lines = line_list(invoice=invoice)
    count = lines.count()
    shown = list(lines[:MOST_LINES])
    names = api_key_names(tenant=invoice.tenant, public_ids=[line.key_id for line in shown])
    tenant = Tenant.objects.filter(pk=invoice.tenant).first()
    sums = ("lines", "carried_in", "credits", "prepaid", "carried_out")
    context: dict[str, Any] = {
        "invoice": invoice,
        "name": tenant.name if tenant else invoice.tenant,
        "shortfall": minor_text(invoice.shortfall_nano, invoice.currency),
        "due": minor_text(invoice.due_nano, invoice.currency),
        "net": decimal_text(invoice.net_nano),
        "tax": minor_text(invoice.tax_nano, invoice.currency),
        "tax_title": tax_title(invoice),
        "sums": {name: decimal_text(getattr(invoice, f"{name}_nano")) for name in sums},
        "lines": [
            {
                "line": line,
                "key": names.get(line.key_id, ""),
                "title": item_title(line.item),
                "amount": None if line.amount_nano is None else decimal_text(line.amount_nano),
                "unit": None if line.unit_nano is None else decimal_text(line.unit_nano),
            }
            for line in shown
        ],
        "left_out": max(0, count - MOST_LINES),
    }
    return render_to_string("billing/invoice.html", context)
