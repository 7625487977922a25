"""Documents name keys as they were called when they were finalized, whatever becomes of the keys."""

from __future__ import annotations

import csv
import io
import json
from typing import Any
from unittest.mock import patch

import pyarrow.parquet as pq
import pytest
from django.test import Client

from controlplane.billing.credit_notes.document import CreditNoteDocument
from controlplane.billing.credit_notes.services import credit_note_issue
from controlplane.billing.documents.formats import document_csv, document_json, document_parquet
from controlplane.billing.documents.pdfs import html
from controlplane.billing.invoices import services
from controlplane.billing.invoices.document import InvoiceDocument
from controlplane.billing.invoices.services import invoice_draft
from controlplane.billing.models import Invoice
from controlplane.tenants.models import ApiKey, Tenant
from controlplane.tenants.roles import Role
from controlplane.tenants.services import api_key_create, user_create
from tests.controlplane.billing.test_invoices import CENT, JANUARY, finalized, priced, use

__all__ = ["priced"]
pytestmark = pytest.mark.django_db


def names(invoice: Invoice) -> list[list[Any]]:
    """Return the keys' names, line by line, from CSV, JSON and Parquet."""
    rows = csv.DictReader(io.StringIO(b"".join(document_csv(InvoiceDocument(invoice))).decode()))
    lines = json.loads(document_json(InvoiceDocument(invoice)))["lines"]
    table = pq.read_table(io.BytesIO(document_parquet(InvoiceDocument(invoice))))
    return [
        [row["key_name"] for row in rows],
        [line["key_name"] for line in lines],
        table["key_name"].to_pylist(),
    ]


@pytest.fixture
def key(priced: Tenant) -> ApiKey:
    key, _ = api_key_create(tenant=priced, name="acme backend", scopes=["inference"])
    use("2026-01-05", 100_000, key=key.pk, adapter=f"t_acme.a_bot.v1.{'a' * 12}")
    use("2026-01-06", 5_000, key="of a server elsewhere")
    return key


def member(tenant: Tenant) -> Client:
    client = Client()
    user = user_create(email="b@acme.test", password="long-enough-7", tenant=tenant, role=Role.BILLING)
    client.force_login(user)
    return client


def test_a_finalized_invoices_files_say_what_keys_were_called(priced: Tenant, key: ApiKey) -> None:
    draft = invoice_draft(tenant="acme", month=JANUARY)
    ApiKey.objects.filter(pk=key.pk).update(name="renamed")
    assert names(draft) == [["", "acme backend"]] * 3, "a draft is brought up to date when it is drafted anew"
    invoice = finalized(JANUARY)
    assert names(invoice) == [["", "renamed"]] * 3
    ApiKey.objects.filter(pk=key.pk).update(name="third-name")
    assert names(invoice) == [["", "renamed"]] * 3
    api_key_adapter = json.loads(document_json(InvoiceDocument(invoice)))["lines"][1]
    assert (api_key_adapter["adapter"], api_key_adapter["key_id"]) == ("bot", key.pk)
    client = member(priced)
    told = client.get(f"/api/v1/invoices/{invoice.pk}/lines").json()["results"]
    assert [line["key_name"] for line in told] == ["", "renamed"]
    for text in (
        html(InvoiceDocument(invoice)),
        client.get(f"/t/acme/billing/invoices/{invoice.pk}/").content.decode(),
    ):
        assert "renamed" in text
        assert "third-name" not in text


def test_a_credit_note_says_what_its_invoice_says(priced: Tenant, key: ApiKey) -> None:
    invoice = finalized(JANUARY)
    note = credit_note_issue(invoice=invoice, reason="other", lines={2: CENT})
    ApiKey.objects.all().delete()
    (row,) = csv.DictReader(io.StringIO(b"".join(document_csv(CreditNoteDocument(note))).decode()))
    (line,) = json.loads(document_json(CreditNoteDocument(note)))["lines"]
    (cell,) = pq.read_table(io.BytesIO(document_parquet(CreditNoteDocument(note))))["key_name"].to_pylist()
    assert row["key_name"] == line["key_name"] == cell == "acme backend"
    assert "acme backend" in html(CreditNoteDocument(note))
    client = member(priced)
    (told,) = client.get(f"/api/v1/credit-notes/{note.pk}/lines").json()["results"]
    assert told["key_name"] == "acme backend"
    assert "acme backend" in client.get(f"/t/acme/billing/credit-notes/{note.pk}/").content.decode()
    whole = credit_note_issue(invoice=invoice, reason="other", amount_nano=CENT)
    assert json.loads(document_json(CreditNoteDocument(whole)))["lines"][0]["key_name"] == ""


def test_what_was_finalized_before_names_were_kept_makes_none_up(priced: Tenant, key: ApiKey) -> None:
    with patch.object(services, "key_names_keep", lambda lines, *, tenant: None):
        invoice = finalized(JANUARY)
    assert names(invoice) == [["", ""], [None, None], [None, None]]
    assert "acme backend" in html(InvoiceDocument(invoice)), "names never change: today's is what it was"
    ApiKey.objects.all().delete()
    assert "acme backend" not in html(InvoiceDocument(invoice))
    client = member(priced)
    assert client.get(f"/t/acme/billing/invoices/{invoice.pk}/").status_code == 200
