"""PDFs are rendered once for many readers, again after a loss, and later after a failure."""

from __future__ import annotations

import datetime as dt
import io
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.artifacts.store import artifact_store
from controlplane.billing.documents import pdfs
from controlplane.billing.documents.pdfs import html, pdf, pdf_render, pdfs_render_due
from controlplane.billing.invoices.document import InvoiceDocument
from controlplane.billing.models import Invoice, InvoicePdf
from controlplane.errors import InvalidInputError
from controlplane.tenants.models import Tenant, User
from controlplane.tenants.roles import Role
from controlplane.tenants.services import user_create
from tests.controlplane.billing.test_invoices import FEBRUARY, JANUARY, finalized, priced, use

__all__ = ["priced"]
pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("weasyprint")]


def _pdf_status(invoice: Invoice) -> int:
    """Return the HTTP status of the PDF for a billing member."""
    user = User.objects.filter(email="asks@acme.test").first() or user_create(
        email="asks@acme.test",
        password="long-enough-7",
        tenant=Tenant.objects.get(pk="acme"),
        role=Role.BILLING,
    )
    client = Client(raise_request_exception=False)
    client.force_login(user)
    return int(client.get(f"/api/v1/invoices/{invoice.pk}/file?form=pdf").status_code)


def test_a_pdf_is_made_once_however_many_ask_and_anew_when_it_is_lost(priced: Tenant) -> None:
    use("2026-01-05", 123_456)
    invoice = finalized(JANUARY)
    asked: list[Any] = []
    rows = InvoicePdf.objects.filter(invoice=invoice)
    with patch.object(pdfs, "enqueue", lambda task, **names: asked.append(names)):
        assert [_pdf_status(invoice) for _ in range(2)] == [503, 503]
        assert asked == [], "finalizing has enqueued it"
        made = pdf

        def twice(document: str) -> bytes:
            assert not pdf_render(InvoiceDocument, invoice.pk), "one makes it"
            # Another one, that holds this attempt for dead.
            rows.update(render_at=timezone.now())
            with patch.object(pdfs, "pdf", made):
                assert pdf_render(InvoiceDocument, invoice.pk)
            return made(document)

        with patch.object(pdfs, "pdf", twice):
            assert not pdf_render(InvoiceDocument, invoice.pk)
        first = InvoicePdf.objects.get()
        assert artifact_store().size(first.key) == first.size
        assert _pdf_status(invoice) == 200
        artifact_store().remove_file(first.key)
        assert [_pdf_status(invoice) for _ in range(2)] == [503, 503]
        assert asked == [{"invoice_id": invoice.pk}]
    assert pdfs_render_due(InvoiceDocument) == 1
    assert _pdf_status(invoice) == 200


def test_a_pdf_that_cannot_be_made_stops_no_other_and_is_tried_later(priced: Tenant) -> None:
    for day in ("2026-01-05", "2026-02-05"):
        use(day, 123_456)
    bad, good = finalized(JANUARY), finalized(FEBRUARY)

    def failing(document: InvoiceDocument) -> str:
        if document.record == bad:
            raise ValueError("no such font")
        return html(document)

    with patch.object(pdfs, "html", failing):
        assert pdfs_render_due(InvoiceDocument) == 1
        assert pdfs_render_due(InvoiceDocument) == 0
        for _ in range(12):
            InvoicePdf.objects.filter(invoice=bad).update(render_at=timezone.now())
            assert pdfs_render_due(InvoiceDocument) == 0
    left = InvoicePdf.objects.get(render_at__isnull=False)
    assert (left.invoice_id, left.attempts) == (bad.pk, 13)
    assert left.render_at is not None
    assert dt.timedelta(hours=5) < left.render_at - timezone.now() <= dt.timedelta(hours=6)
    assert InvoicePdf.objects.get(invoice=good).key


def test_a_file_that_stands_in_the_store_survives_a_second_one_of_its_name(graftwork: Path) -> None:
    store = artifact_store()
    store.put("invoices/acme/1/a.pdf", io.BytesIO(b"first"), limit=10)
    with pytest.raises(FileExistsError):
        store.put("invoices/acme/1/a.pdf", io.BytesIO(b"second"), limit=10)
    assert store.size("invoices/acme/1/a.pdf") == 5
    with pytest.raises(InvalidInputError):
        store.put("invoices/acme/1/b.pdf", io.BytesIO(b"too long"), limit=2)
    assert store.size("invoices/acme/1/b.pdf") is None
