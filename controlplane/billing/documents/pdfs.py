"""PDFs of documents: claimed, rendered, stored in the artifact store, and rendered again if lost."""

from __future__ import annotations

import datetime as dt
import hashlib
import io
import logging
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from django.db.models import F
from django.template.loader import render_to_string
from django.utils import timezone

from controlplane.artifacts.store import artifact_store
from controlplane.billing.documents.document import AnyDocument
from controlplane.billing.models import StoredPdf
from controlplane.billing.taxes.selectors import tax_title
from controlplane.platform.queue import enqueue
from controlplane.tenants.models import Tenant

if TYPE_CHECKING:
    from weasyprint.urls import URLFetcherResponse

logger = logging.getLogger(__name__)

MOST_LINES: Final = 1000
"""Most lines in a PDF, rendered in about a minute; the other formats have all lines."""
RETRY_AFTER: Final = dt.timedelta(minutes=10)
"""Delay before a retry, longer than the task may take. It doubles per attempt, up to `_RETRY_AT_LEAST`."""
_RETRY_AT_LEAST: Final = dt.timedelta(hours=6)
_MOST_BYTES: Final = 32 << 20
_PIECE: Final = 1 << 20


def pdf_render(kind: type[AnyDocument], pk: int) -> bool:
    """Render and store the PDF of a final document; return False when it is not due now.

    An attempt claims the PDF first. A failed one is retried after growing delays.
    """
    row = _claim(kind.pdfs, pk)
    return row is not None and _store(row, kind(getattr(row, kind.kind)))


def pdfs_render_due(kind: type[AnyDocument]) -> int:
    """Render the PDFs that are due, the oldest 1,000 at most; return how many.

    A PDF that fails does not stop the others.
    """
    due = kind.pdfs._default_manager.filter(render_at__lte=timezone.now()).order_by("render_at")
    count = 0
    for pk in list(due.values_list("pk", flat=True)[:1000]):
        try:
            count += pdf_render(kind, pk)
        except Exception:
            named = kind.kind.replace("_", " ")
            logger.exception("rendering the PDF of %s %d failed; it will be retried", named, pk)
    return count


def pdf_ready(document: AnyDocument) -> StoredPdf | None:
    """Return the final document's PDF, or None while it is being made. A lost file is rendered again."""
    rows, pk = document.pdfs._default_manager, document.record.pk
    row = rows.get(pk=pk)
    if row.render_at is not None:
        return None
    if artifact_store().size(row.key) is not None:
        return row
    # Of concurrent readers, only one enqueues the task.
    if rows.filter(pk=pk, render_at=None, key=row.key).update(render_at=timezone.now()):
        logger.error("the PDF of %s is missing from the artifact store; rendering it again", document.record)
        enqueue(document.render_task, **{f"{document.kind}_id": pk})
    return None


def html(document: AnyDocument) -> str:
    """Return the HTML that is rendered."""
    lines = document.lines()
    tenant = Tenant.objects.filter(pk=document.record.tenant).first()
    context: dict[str, Any] = {
        "invoice": document.invoice,
        "name": tenant.name if tenant else document.record.tenant,
        "tax_title": tax_title(document.invoice),
        "left_out": max(0, lines.count() - MOST_LINES),
        **document.pdf_context(list(lines[:MOST_LINES])),
    }
    return render_to_string(f"billing/{document.kind}.html", context)


def _claim(rows: type[StoredPdf], pk: int) -> StoredPdf | None:
    """Claim the row for this attempt; None when it is not due now."""
    now = timezone.now()
    due = rows._default_manager.filter(pk=pk, render_at__lte=now)
    if not due.update(render_at=now + RETRY_AFTER, attempts=F("attempts") + 1):
        return None
    row = rows._default_manager.get(pk=pk)
    mine = rows._default_manager.filter(pk=pk, render_at__isnull=False, attempts=row.attempts)
    mine.update(render_at=now + min(RETRY_AFTER * 2 ** min(row.attempts - 1, 10), _RETRY_AT_LEAST))
    return row


def _store(row: StoredPdf, document: AnyDocument) -> bool:
    """Store this attempt's PDF; False when another attempt, which took this one for dead, did so."""
    content, record = pdf(html(document)), document.record
    folder = f"{document.kind.replace('_', '-')}s/{record.tenant}/{record.pk}"
    # A unique name, so that an attempt that outlived its claim cannot overwrite this file.
    key = f"{folder}/{record.title.lower()}-{uuid.uuid4().hex[:8]}.pdf"
    artifact_store().put(key, io.BytesIO(content), limit=_MOST_BYTES)
    mine = type(row)._default_manager.filter(pk=row.pk, render_at__isnull=False, attempts=row.attempts)
    if mine.update(
        key=key,
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        rendered_at=timezone.now(),
        render_at=None,
        attempts=0,
    ):
        return True
    artifact_store().remove_file(key)
    return False


def pdf_pieces(row: StoredPdf) -> Iterator[bytes]:
    """Yield the stored file in pieces of 1 MiB."""
    with artifact_store().open(row.key) as stream:
        while piece := stream.read(_PIECE):
            yield piece


def pdf(document: str) -> bytes:
    """Render HTML as PDF. Resources named by URL are left out: nothing is fetched."""
    # Import here: only the rendering task needs WeasyPrint and its libraries.
    from weasyprint import HTML
    from weasyprint.urls import URLFetcher

    class Refusing(URLFetcher):  # type: ignore[misc]
        """Fetches nothing."""

        def fetch(self, url: str, headers: Any = None) -> URLFetcherResponse:
            raise ValueError("documents cannot load external resources")

    made: bytes = HTML(string=document, base_url=None, url_fetcher=Refusing()).write_pdf()
    return made
