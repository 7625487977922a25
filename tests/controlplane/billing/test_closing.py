"""Months close in order and never reopen; one tenant's error does not stop the others."""

from __future__ import annotations

import datetime as dt
from typing import Any
from unittest.mock import patch

import pytest
from django.db import IntegrityError, connection, transaction

from controlplane.billing.invoices import services
from controlplane.billing.invoices.services import invoice_draft, invoice_finalize, invoices_draft_due
from controlplane.billing.ledger import credits
from controlplane.billing.ledger.credits import credit_grant, credits_expire
from controlplane.billing.ledger.posting import usage_post
from controlplane.billing.models import CreditGrant, Invoice, InvoiceLine, JournalEntry, LedgerHead
from controlplane.errors import ConflictError
from controlplane.tenants.models import Tenant
from tests.controlplane.billing.test_invoices import FEBRUARY, JANUARY, MARCH, finalized, priced, use

__all__ = ["priced"]
pytestmark = pytest.mark.django_db


def test_a_draft_of_a_month_that_was_closed_meanwhile_is_not_finalized(priced: Tenant) -> None:
    old = invoice_draft(tenant="acme", month=JANUARY)
    use("2026-02-05", 100_000)
    finalized(FEBRUARY)
    assert not Invoice.objects.filter(pk=old.pk).exists(), "it said nothing, and its month is closed"
    with pytest.raises(ConflictError, match="a later month was closed"):
        invoice_finalize(invoice=old)
    use("2026-02-06", 50_000)
    usage_post(tenant="acme", start=JANUARY, end=MARCH)
    assert finalized(MARCH, today=dt.date(2026, 4, 1)).number == 2
    assert InvoiceLine.objects.count() == 2


def test_what_is_closed_is_not_opened_again_by_the_database_either(priced: Tenant) -> None:
    use("2026-02-05", 100_000)
    finalized(FEBRUARY)
    head = LedgerHead.objects.filter(tenant="acme")
    for change in ({"closed_through": JANUARY}, {"closed_through": None}, {"entries": 0}, {"invoices": 0}):
        with pytest.raises(IntegrityError, match="cannot decrease"), transaction.atomic():
            head.update(**change)
    with pytest.raises(IntegrityError, match="cannot decrease"), transaction.atomic():
        head._raw_delete(head.db)
    assert head.update(closed_through=MARCH) == 1


def test_a_month_with_nothing_but_unpriced_usage_is_drafted_and_comes_first(priced: Tenant) -> None:
    use("2026-01-05", 77, base="unknown")
    use("2026-02-05", 100_000)
    usage_post(tenant="acme", start=JANUARY, end=MARCH)
    assert invoices_draft_due(today=MARCH) == 2
    january, february = Invoice.objects.order_by("month")
    assert january.unpriced
    with pytest.raises(ConflictError, match="2026-01 is still open"):
        invoice_finalize(invoice=february)
    use("2026-01-06", 11, base="unknown")
    usage_post(tenant="acme", start=JANUARY, end=MARCH)
    assert invoices_draft_due(today=MARCH) == 2
    assert january.lines.get().quantity == 88
    invoice_finalize(invoice=january, allow_unpriced=True)
    assert invoice_finalize(invoice=february).number == 2


def test_one_tenants_trouble_holds_up_no_other(priced: Tenant, caplog: pytest.LogCaptureFixture) -> None:
    use("2026-01-05", 100_000)
    usage_post(tenant="acme", start=JANUARY, end=MARCH)
    LedgerHead.objects.create(tenant="aaa", closed_through=dt.date(2025, 1, 1))
    draft_due, expire = services._draft_due, credits._expire

    def failing(tenant: str, *arguments: Any) -> int:
        if tenant == "aaa":
            raise ArithmeticError("too much")
        return draft_due(tenant, *arguments) if arguments else expire(tenant)

    with patch.object(services, "_draft_due", failing):
        assert invoices_draft_due(today=MARCH) == 1
    credit_grant(tenant=priced, amount_nano=5, starts=JANUARY, expires_on=dt.date(2026, 1, 10))
    finalized(JANUARY)
    credit_grant(tenant=priced, amount_nano=5, starts=JANUARY)
    LedgerHead.objects.filter(tenant="acme").update(closed_through=FEBRUARY)
    with patch.object(credits, "_expire", failing):
        assert credits_expire() == 0, "the first one paid usage of its days"
    assert [record.message.split(";")[0] for record in caplog.records if record.exc_info] == [
        "drafting invoices of tenant aaa failed",
        "expiring credits of tenant aaa failed",
    ]


@pytest.mark.skipif("connection.vendor != 'sqlite'", reason="PostgreSQL has no REPLACE")
def test_a_row_is_not_replaced_by_any_of_its_keys(priced: Tenant) -> None:
    use("2026-01-05", 100_000)
    credit_grant(tenant=priced, amount_nano=5)
    final = finalized(JANUARY)
    draft = invoice_draft(tenant="acme", month=FEBRUARY)
    entry = JournalEntry.objects.filter(kind="usage").get()
    rows: list[tuple[Any, dict[str, Any]]] = [
        (entry, {"id": 10_000}),
        (CreditGrant.objects.get(), {}),
        (final, {"id": 10_000, "status": "draft", "number": None, "finalized_at": None}),
        (final, {"month": MARCH, "status": "draft", "number": None, "finalized_at": None}),
        (final.lines.get(), {"invoice_id": draft.pk}),
        (LedgerHead.objects.get(tenant="acme"), {"closed_through": None}),
    ]
    for row, changes in rows:
        values = {
            field.attname: field.get_db_prep_save(getattr(row, field.attname), connection)
            for field in row._meta.concrete_fields
        } | changes
        sql = (
            f"INSERT OR REPLACE INTO {row._meta.db_table} ({', '.join(values)})"
            f" VALUES ({', '.join(['%s'] * len(values))})"
        )
        with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(sql, list(values.values()))
    with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("UPDATE OR REPLACE billing_invoice SET month = %s WHERE id = %s", [JANUARY, draft.pk])
    assert Invoice.objects.get(pk=final.pk).lines.count() == 1


def test_what_came_late_is_on_a_draft_at_once(priced: Tenant) -> None:
    use("2026-01-05", 1_000_000)
    finalized(JANUARY)
    use("2026-01-20", 2_000_000)
    use("2026-02-05", 1_000_000)
    draft = invoice_draft(tenant="acme", month=FEBRUARY)
    assert draft.lines_nano == 3 * 10**9, "no night has booked it"
    assert [(line.month, line.adjusts) for line in draft.lines.order_by("month")] == [
        (JANUARY, True),
        (FEBRUARY, False),
    ]
    use("2026-01-21", 4_000_000)
    assert finalized(FEBRUARY).lines_nano == 7 * 10**9, "nor before it is finalized"
