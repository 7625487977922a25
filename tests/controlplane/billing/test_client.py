"""The Python client against the web process's own REST API: what a tenant owes, and its documents."""

from __future__ import annotations

from pathlib import Path

import pytest
from graftwork import Client, NotFoundError
from pytest_django.live_server_helper import LiveServer

from controlplane.billing.credit_notes.document import CreditNoteDocument
from controlplane.billing.credit_notes.services import credit_note_issue
from controlplane.billing.documents.pdfs import pdf_render
from controlplane.tenants.models import Project, Tenant
from controlplane.tenants.roles import Role
from controlplane.tenants.services import api_key_create, service_account_create
from tests.controlplane.billing.test_invoices import CENT, JANUARY, finalized, priced, use
from tests.controlplane.billing.test_taxes import vat

__all__ = ["priced"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("weasyprint")]


def test_what_is_owed_and_its_documents(live_server: LiveServer, priced: Tenant, tmp_path: Path) -> None:
    vat(priced, tax_number="DE1")
    use("2026-01-05", 100_000)
    invoice = finalized(JANUARY)
    note = credit_note_issue(invoice=invoice, reason="other", lines={1: 5 * CENT})
    pdf_render(CreditNoteDocument, note.pk)
    project = Project.objects.get(tenant=priced)
    account = service_account_create(project=project, name="accounts", role=Role.BILLING)
    _, key = api_key_create(tenant=priced, name="accounts", scopes=["manage"], service_account=account)
    with Client(live_server.url, key, retries=0) as client:
        assert client.billing.balance().receivable == 6 * CENT
        (found,) = client.billing.invoices(status="finalized")
        assert found == client.billing.invoice(invoice.pk)
        assert (found.tax_nano, found.tax_rate_percent, found.tax_number) == (2 * CENT, "19.0000", "DE1")
        assert [line.amount_nano for line in client.billing.invoice_lines(found.id)] == [10 * CENT]
        (taken,) = client.billing.credit_notes(invoice=found.id)
        assert taken == client.billing.credit_note(note.pk)
        assert (taken.title, taken.total_nano, taken.pre_payment_nano) == (
            "ACME-CN000001",
            6 * CENT,
            6 * CENT,
        )
        assert [line.invoice_position for line in client.billing.credit_note_lines(taken.id)] == [1]
        assert [treatment.label for treatment in client.billing.tax_treatments()] == ["VAT"]
        document = client.billing.credit_note_file(taken.id, tmp_path / "note.pdf", form="pdf")
        assert document.read_bytes().startswith(b"%PDF-")
        text = client.billing.invoice_file(found.id, tmp_path / "invoice.csv").read_text()
        assert text.startswith("position,")
        with pytest.raises(NotFoundError):
            client.billing.credit_note(note.pk + 1)
