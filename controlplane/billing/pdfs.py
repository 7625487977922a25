"""PDFs of documents: claimed, rendered, stored in the artifact store, and rendered again if lost."""

from __future__ import annotations

import datetime as dt
import hashlib
import io
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from django.db.models import F
from django.utils import timezone

from controlplane.artifacts.store import artifact_store
from controlplane.billing.models import StoredPdf

if TYPE_CHECKING:
    from weasyprint.urls import URLFetcherResponse

_Stored = TypeVar("_Stored", bound=StoredPdf)

RETRY_AFTER: Final = dt.timedelta(minutes=10)
"""Delay before a retry, longer than the task may take. It doubles per attempt, up to `_RETRY_AT_LEAST`."""
_RETRY_AT_LEAST: Final = dt.timedelta(hours=6)
_MOST_BYTES: Final = 32 << 20
_PIECE: Final = 1 << 20


def pdf_claim(rows: type[_Stored], pk: int) -> _Stored | None:
    """Claim the row for this attempt; None when it is not due now."""
    now = timezone.now()
    due = rows._default_manager.filter(pk=pk, render_at__lte=now)
    if not due.update(render_at=now + RETRY_AFTER, attempts=F("attempts") + 1):
        return None
    row = rows._default_manager.get(pk=pk)
    mine = rows._default_manager.filter(pk=pk, render_at__isnull=False, attempts=row.attempts)
    mine.update(render_at=now + min(RETRY_AFTER * 2 ** min(row.attempts - 1, 10), _RETRY_AT_LEAST))
    return row


def pdf_keep(row: StoredPdf, *, folder: str, title: str, document: bytes) -> bool:
    """Store this attempt's PDF; False when another attempt, which took this one for dead, did so."""
    # A unique name, so that an attempt that outlived its claim cannot overwrite this file.
    key = f"{folder}/{title.lower()}-{uuid.uuid4().hex[:8]}.pdf"
    artifact_store().put(key, io.BytesIO(document), limit=_MOST_BYTES)
    mine = type(row)._default_manager.filter(pk=row.pk, render_at__isnull=False, attempts=row.attempts)
    if mine.update(
        key=key, size=len(document), sha256=hashlib.sha256(document).hexdigest(), rendered_at=timezone.now(),
        render_at=None, attempts=0,
    ):  # fmt: skip
        return True
    artifact_store().remove_file(key)
    return False


def pdf_found(row: _Stored, *, lost: Callable[[], None]) -> _Stored | None:
    """Return the row if its file is in the store, or None while it is being made.

    If the file is missing, `lost` is called once and the PDF becomes due again.
    """
    if row.render_at is not None:
        return None
    if artifact_store().size(row.key) is not None:
        return row
    gone = type(row)._default_manager.filter(pk=row.pk, render_at=None, key=row.key)
    if gone.update(render_at=timezone.now()):
        lost()
    return None


def pdfs_due(rows: type[StoredPdf]) -> list[int]:
    """Ids of PDFs that are due to be rendered, oldest first; at most 1,000."""
    due = rows._default_manager.filter(render_at__lte=timezone.now()).order_by("render_at")
    return list(due.values_list("pk", flat=True)[:1000])


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
            raise ValueError("an invoice is rendered from its own text alone")

    made: bytes = HTML(string=document, base_url=None, url_fetcher=Refusing()).write_pdf()
    return made
