"""A finalized invoice's PDF: rendered by a task, kept in the artifact store, made anew if it gets lost."""

from __future__ import annotations

import logging
from typing import Any, Final

from django.template.loader import render_to_string

from controlplane.billing.invoices.files import item_title
from controlplane.billing.invoices.selectors import key_names, line_list
from controlplane.billing.models import Invoice, InvoicePdf
from controlplane.billing.pdfs import pdf as pdf
from controlplane.billing.pdfs import pdf_claim, pdf_found, pdf_keep, pdfs_due
from controlplane.billing.taxes.selectors import tax_title
from controlplane.platform.queue import enqueue
from controlplane.tenants.models import Tenant

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
    names = key_names(invoice=invoice, lines=shown)
    tenant = Tenant.objects.filter(pk=invoice.tenant).first()
    context: dict[str, Any] = {
        "invoice": invoice,
        "name": tenant.name if tenant else invoice.tenant,
        "tax_title": tax_title(invoice),
        "lines": [
            {"line": line, "key": names[line.key_id], "title": item_title(line.item)} for line in shown
        ],
        "left_out": max(0, count - MOST_LINES),
    }
    return render_to_string("billing/invoice.html", context)
