"""Renders credit notes as PDF, as invoices are."""

from __future__ import annotations

import logging
from typing import Any, Final

from django.template.loader import render_to_string

from controlplane.billing.credit_notes.selectors import note_line_list
from controlplane.billing.invoices.files import item_title
from controlplane.billing.models import CreditNote, CreditNotePdf
from controlplane.billing.pdfs import pdf, pdf_claim, pdf_found, pdf_keep, pdfs_due
from controlplane.billing.taxes.selectors import tax_title
from controlplane.platform.queue import enqueue
from controlplane.tenants.models import Tenant

logger = logging.getLogger(__name__)

MOST_LINES: Final = 1000
RENDER_TASK: Final = "billing.render_credit_note"


def credit_note_render(*, credit_note_id: int) -> bool:
    """Renders and stores the PDF; returns False when it is not due now."""
    row = pdf_claim(CreditNotePdf, credit_note_id)
    if row is None:
        return False
    note = row.credit_note
    folder = f"credit-notes/{note.tenant}/{note.pk}"
    return pdf_keep(row, folder=folder, title=note.title, document=pdf(html(note)))


def credit_notes_render_due() -> int:
    """Renders the PDFs that are due; returns how many. A failing one does not stop the others."""
    count = 0
    for note_id in pdfs_due(CreditNotePdf):
        try:
            count += credit_note_render(credit_note_id=note_id)
        except Exception:
            logger.exception("the PDF of credit note %d is not made; it is tried again", note_id)
    return count


def pdf_ready(*, credit_note: CreditNote) -> CreditNotePdf | None:
    """Return the stored PDF, or None while it is being made. A lost file is rendered again."""

    def rerender() -> None:
        logger.error("the PDF of %s is lost from the artifact store: it is made anew", credit_note)
        enqueue(RENDER_TASK, credit_note_id=credit_note.pk)

    return pdf_found(CreditNotePdf.objects.get(credit_note=credit_note), lost=rerender)


def html(note: CreditNote) -> str:
    """Return the HTML that is rendered."""
    lines = note_line_list(credit_note=note)
    tenant = Tenant.objects.filter(pk=note.tenant).first()
    context: dict[str, Any] = {
        "note": note,
        "invoice": note.invoice,
        "name": tenant.name if tenant else note.tenant,
        "tax_title": tax_title(note.invoice),
        "lines": [
            (
                line.invoice_line,
                item_title(line.invoice_line.item) if line.invoice_line else "",
                line.amount_nano,
            )
            for line in lines[:MOST_LINES]
        ],
        "left_out": max(0, lines.count() - MOST_LINES),
    }
    return render_to_string("billing/credit_note.html", context)
