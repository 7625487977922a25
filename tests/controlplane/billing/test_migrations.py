"""The books' migrations, forward and back, with rows that there are, and their triggers at each of them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.migrations.executor import MigrationExecutor

from controlplane.billing.ledger import append_only
from controlplane.billing.migrations import _triggers_0003, _triggers_0004, _triggers_0009, _triggers_0010
from controlplane.billing.models import Invoice, JournalEntry

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.costly("migrates back and forth")]
_THIRD, _FOURTH = "0003_terms_and_triggers", "0004_credit_notes_and_taxes"
_NINTH = "0009_voided_credit_notes"


def migrate(name: str) -> Any:
    """To one of billing's; its models."""
    MigrationExecutor(connection).migrate([("billing", name)])
    return MigrationExecutor(connection).loader.project_state([("billing", name)]).apps


@pytest.fixture
def latest() -> Iterator[None]:
    """Leaves the newest schema for the tests that follow."""
    yield
    executor = MigrationExecutor(connection)
    executor.migrate(executor.loader.graph.leaf_nodes())


def triggers() -> dict[str, str]:
    """The books' triggers and their functions as the database has them, but for white space."""
    asked = (
        """
        SELECT tgname || ' ' || relname, pg_get_triggerdef(pg_trigger.oid) || prosrc FROM pg_trigger
        JOIN pg_class ON pg_class.oid = tgrelid JOIN pg_proc ON pg_proc.oid = tgfoid
        WHERE NOT tgisinternal AND tgname LIKE 'billing%'
        """
        if connection.vendor == "postgresql"
        else "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND name LIKE 'billing%'"
    )
    with connection.cursor() as cursor:
        cursor.execute(asked)
        return {name: "".join(text.split()) for name, text in cursor.fetchall()}


def book(apps: Any) -> None:
    """A finalized invoice with its entry, as a release of that migration writes them."""
    at = dt.datetime(2026, 2, 1, tzinfo=dt.UTC)
    apps.get_model("billing", "LedgerHead").objects.create(tenant="acme", entries=1, invoices=1)
    invoice = apps.get_model("billing", "Invoice").objects.create(
        tenant="acme",
        month=dt.date(2026, 1, 1),
        currency="USD",
        drafted_at=at,
        lines_nano=10**7,
        due_nano=10**7,
    )
    invoice.number, invoice.status, invoice.finalized_at = 1, "finalized", at
    invoice.save()
    apps.get_model("billing", "JournalEntry").objects.create(
        tenant="acme", number=1, at=at, day=dt.date(2026, 1, 31), kind="invoiced", debit="receivable",
        credit="unbilled", amount_nano=10**7, currency="USD", invoice=invoice,
    )  # fmt: skip


def refuses(apps: Any) -> None:
    """Neither an entry nor an invoice that is final can be changed, and counters do not go back."""
    for model, change, text in (
        ("JournalEntry", {"amount_nano": 1}, "append-only"), ("Invoice", {"due_nano": 1}, "never changed"),
        ("LedgerHead", {"entries": 0}, "only grow"),
    ):  # fmt: skip
        with pytest.raises(IntegrityError, match=text), transaction.atomic():
            apps.get_model("billing", model).objects.update(**change)


def holds_checks(apps: Any, *, validated: bool) -> None:
    """Of rows that are written now; on PostgreSQL those that were there are looked at when told."""
    entry, invoice = apps.get_model("billing", "JournalEntry"), apps.get_model("billing", "Invoice")
    at = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
    with pytest.raises(IntegrityError, match="journal_known_accounts"), transaction.atomic():
        entry.objects.create(
            tenant="acme", number=2, at=at, day=at, kind="payment", debit="pocket", credit="receivable",
            amount_nano=1, currency="USD",
        )  # fmt: skip
    with pytest.raises(IntegrityError, match="invoice_adds_up"), transaction.atomic():
        invoice.objects.create(
            tenant="acme", month=dt.date(2026, 2, 1), currency="USD", drafted_at=at, tax_nano=1
        )
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT convalidated FROM pg_constraint"
                " WHERE conname IN ('journal_known_accounts', 'invoice_adds_up')"
            )
            assert cursor.fetchall() == [(validated,)] * 2


@pytest.mark.usefixtures("latest")
def test_the_books_go_back_and_forth_and_are_append_only_at_each_step() -> None:
    newest = triggers()
    migrate("0002_ledger_and_invoices")
    assert triggers() == {}, "taken back to before there were any"
    before = migrate(_THIRD)
    third = triggers()
    assert not any("creditnote" in text for text in third.values())
    book(before)
    refuses(before)
    after = migrate(_FOURTH)
    assert triggers().keys() > third.keys()
    refuses(after)
    invoice = after.get_model("billing", "Invoice").objects.get()
    with pytest.raises(IntegrityError, match="without a gap"), transaction.atomic():
        after.get_model("billing", "CreditNote").objects.create(
            tenant="acme", number=2, invoice=invoice, currency="USD", net_nano=1, tax_nano=0,
            pre_payment_nano=1, post_payment_nano=0, issued_at=invoice.finalized_at,
        )  # fmt: skip
    holds_checks(after, validated=False)
    holds_checks(migrate("0006_validate_checks"), validated=True)
    back = migrate(_THIRD)
    assert triggers() == third
    refuses(back)
    executor = MigrationExecutor(connection)
    executor.migrate(executor.loader.graph.leaf_nodes())
    assert triggers() == newest


@pytest.mark.usefixtures("latest")
def test_books_with_tax_are_not_taken_back_to_a_release_that_knows_none() -> None:
    at = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
    JournalEntry.objects.create(
        tenant="acme", number=1, at=at, day=at, kind="tax", debit="unbilled", credit="tax", amount_nano=1,
        currency="USD",
    )  # fmt: skip
    with pytest.raises(IntegrityError, match="journal_known_accounts"):
        migrate(_THIRD)


@pytest.mark.usefixtures("latest")
def test_books_with_a_shortfall_go_forth_with_their_invoices_and_not_back() -> None:
    before = migrate(_NINTH)
    ninth = triggers()
    book(before)
    after = migrate("0011_validate_shortfall")
    assert triggers().keys() == ninth.keys()
    refuses(after)
    invoices = after.get_model("billing", "Invoice")
    assert invoices.objects.get().shortfall_nano == 0
    holds_checks(after, validated=True)
    migrate(_NINTH)
    assert triggers() == ninth
    after = migrate("0011_validate_shortfall")
    at = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
    after.get_model("billing", "Invoice").objects.create(
        tenant="acme", month=dt.date(2026, 2, 1), currency="USD", drafted_at=at, shortfall_nano=10**7,
        due_nano=10**7,
    )  # fmt: skip
    with pytest.raises(IntegrityError, match="invoice_adds_up"):
        migrate(_NINTH)
    Invoice.objects.filter(status="draft").delete()


def test_migrations_make_the_triggers_of_today() -> None:
    """Who changes one changes it by a migration, else a database that there is keeps the old one."""
    append_only.remove(connection)
    append_only.install(connection)
    of_today = triggers()
    append_only.remove(connection)
    names = {f"{name} {table}" for name, table in append_only._POSTGRESQL_TRIGGERS}
    sqlite = _triggers_0004.SQLITE | _triggers_0009.SQLITE | _triggers_0010.SQLITE
    assert of_today.keys() == (names if connection.vendor == "postgresql" else sqlite.keys())
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            changed = (*_triggers_0004.POSTGRESQL, *_triggers_0009.POSTGRESQL, *_triggers_0010.POSTGRESQL)
            for statement in changed:
                cursor.execute(statement)
        else:
            for name, body in sqlite.items():
                cursor.execute(f"CREATE TRIGGER {name} {body}")
    assert triggers() == of_today
    assert _triggers_0003.SQLITE.keys() < _triggers_0004.SQLITE.keys()
