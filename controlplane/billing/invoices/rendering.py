"""Renders finalized invoices as PDF, stored in the artifact store and rendered again if lost."""

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
"""Most lines in a PDF, rendered in about a minute; the other formats have all lines."""
RENDER_TASK: Final = "billing.render_invoice"


def invoice_render(*, invoice_id: int) -> bool:
    """Renders and stores the PDF of a finalized invoice; returns False when it is not due now.

    An attempt claims the PDF first. A failed one is retried after growing delays.
    """
    row = pdf_claim(InvoicePdf, invoice_id)
    if row is None:
        return False
    invoice = row.invoice
    document = pdf(html(invoice))
    folder = f"invoices/{invoice.tenant}/{invoice.pk}"
    return pdf_keep(row, folder=folder, title=invoice.title, document=document)


def invoices_render_due() -> int:
    """Renders the PDFs that are due; returns how many. A failing one does not stop the others."""
    count = 0
    for invoice_id in pdfs_due(InvoicePdf):
        try:
            count += invoice_render(invoice_id=invoice_id)
        except Exception:
            logger.exception("the PDF of invoice %d is not made; it is tried again", invoice_id)
    return count


def pdf_ready(*, invoice: Invoice) -> InvoicePdf | None:
    """Return the finalized invoice's PDF, or None while it is being made. A lost file is rendered again."""

    def rerender() -> None:
        logger.error("the PDF of %s is lost from the artifact store: it is made anew", invoice)
        enqueue(RENDER_TASK, invoice_id=invoice.pk)

    return pdf_found(InvoicePdf.objects.get(invoice=invoice), lost=rerender)


def html(invoice: Invoice) -> str:
    """Return the HTML that is rendered."""
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
