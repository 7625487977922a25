"""A finalized invoice's PDF: rendered by a task, kept in the artifact store, made anew if it gets lost."""

from __future__ import annotations

import datetime as dt
import hashlib
import io
import logging
import uuid
from typing import TYPE_CHECKING, Any, Final

from django.db.models import F
from django.template.loader import render_to_string
from django.utils import timezone

from controlplane.artifact_store import artifact_store
from controlplane.billing.invoices.currency import decimal_text, minor_text
from controlplane.billing.invoices.files import item_title
from controlplane.billing.invoices.selectors import line_list
from controlplane.billing.models import Invoice, InvoicePdf
from controlplane.queue import enqueue
from controlplane.tenants.models import Tenant

if TYPE_CHECKING:
    from weasyprint.urls import URLFetcherResponse

logger = logging.getLogger(__name__)

MOST_LINES: Final = 1000
"""Lines that a PDF shows, in about a minute; the other forms have them all."""
RENDER_TASK: Final = "billing.render_invoice"
RETRY_AFTER: Final = dt.timedelta(minutes=10)
"""Longer than the task may take; twice that after each attempt, but `_RETRY_AT_LEAST` so often."""
_RETRY_AT_LEAST: Final = dt.timedelta(hours=6)
_MOST_BYTES: Final = 32 << 20


def invoice_render(*, invoice_id: int) -> bool:
    """Makes the PDF of a finalized invoice and keeps it; False when that is not due now.

    Who makes it claims it first. What goes wrong is tried again later, and longer and longer after that.
    """
    now = timezone.now()
    due = InvoicePdf.objects.filter(invoice=invoice_id, render_at__lte=now)
    if not due.update(render_at=now + RETRY_AFTER, attempts=F("attempts") + 1):
        return False
    row = InvoicePdf.objects.select_related("invoice").get(invoice=invoice_id)
    mine = InvoicePdf.objects.filter(invoice=invoice_id, render_at__isnull=False, attempts=row.attempts)
    mine.update(render_at=now + min(RETRY_AFTER * 2 ** min(row.attempts - 1, 10), _RETRY_AT_LEAST))
    # A name of its own: an attempt that outlived its claim writes beside this one, not over it.
    name = f"{row.invoice.title.lower()}-{uuid.uuid4().hex[:8]}.pdf"
    key = f"invoices/{row.invoice.tenant}/{row.invoice.pk}/{name}"
    document = pdf(html(row.invoice))
    artifact_store().put(key, io.BytesIO(document), limit=_MOST_BYTES)
    if mine.update(
        key=key, size=len(document), sha256=hashlib.sha256(document).hexdigest(), rendered_at=timezone.now(),
        render_at=None, attempts=0,
    ):  # fmt: skip
        return True
    artifact_store().remove_file(key)
    return False


def invoices_render_due() -> int:
    """Makes the PDFs that are due; how many. One that cannot be made holds up no other."""
    due = InvoicePdf.objects.filter(render_at__lte=timezone.now()).order_by("render_at")
    count = 0
    for invoice_id in list(due.values_list("pk", flat=True)[:1000]):
        try:
            count += invoice_render(invoice_id=invoice_id)
        except Exception:
            logger.exception("the PDF of invoice %d is not made; it is tried again", invoice_id)
    return count


def pdf_ready(*, invoice: Invoice) -> InvoicePdf | None:
    """The document of a finalized invoice; None while it is made. One that got lost is made anew, once."""
    row = InvoicePdf.objects.get(invoice=invoice)
    if row.render_at is not None:
        return None
    if artifact_store().size(row.key) is not None:
        return row
    lost = InvoicePdf.objects.filter(invoice=invoice, render_at=None, key=row.key)
    if lost.update(render_at=timezone.now()):
        logger.error("the PDF of %s is lost from the artifact store: it is made anew", invoice)
        enqueue(RENDER_TASK, invoice_id=invoice.pk)
    return None


def html(invoice: Invoice) -> str:
    """The document that is rendered."""
    lines = line_list(invoice=invoice)
    count = lines.count()
    tenant = Tenant.objects.filter(pk=invoice.tenant).first()
    sums = ("lines", "carried_in", "credits", "prepaid", "carried_out")
    context: dict[str, Any] = {
        "invoice": invoice,
        "name": tenant.name if tenant else invoice.tenant,
        "due": minor_text(invoice.due_nano, invoice.currency),
        "sums": {name: decimal_text(getattr(invoice, f"{name}_nano")) for name in sums},
        "lines": [
            {
                "line": line,
                "title": item_title(line.item),
                "amount": None if line.amount_nano is None else decimal_text(line.amount_nano),
                "unit": None if line.unit_nano is None else decimal_text(line.unit_nano),
            }
            for line in lines[:MOST_LINES]
        ],
        "left_out": max(0, count - MOST_LINES),
    }
    return render_to_string("billing/invoice.html", context)


def pdf(document: str) -> bytes:
    """`document` (HTML) as PDF. Whatever it names by URL is left out: nothing is fetched from anywhere."""
    # Only the task needs it, and the libraries that it loads.
    from weasyprint import HTML
    from weasyprint.urls import URLFetcher

    class Refusing(URLFetcher):  # type: ignore[misc]
        """Fetches nothing."""

        def fetch(self, url: str, headers: Any = None) -> URLFetcherResponse:
            raise ValueError("an invoice is rendered from its own text alone")

    made: bytes = HTML(string=document, base_url=None, url_fetcher=Refusing()).write_pdf()
    return made
