"""Price books, drafts and files: the input that they refuse and accept."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import Client

from controlplane.billing.invoices.services import invoice_draft
from controlplane.billing.ledger.credits import credit_grant
from controlplane.billing.models import PriceBook, PriceBookTerm
from controlplane.billing.services import hosting_price_set, price_book_create, price_set
from controlplane.billing.terms import term_create, term_end
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.platform.audit.models import AuditRecord
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Role
from controlplane.tenants.services import user_create
from tests.controlplane.billing.test_invoices import JANUARY, finalized, priced, use

__all__ = ["priced"]
pytestmark = pytest.mark.django_db


def test_a_book_for_everyone_removes_no_plan_and_says_what_it_ends(priced: Tenant) -> None:
    today = dt.datetime.now(dt.UTC).date()
    standard = PriceBookTerm.objects.get()
    term_end(term=standard, ends=today + dt.timedelta(days=9))
    planned = price_book_create(name="planned")
    plan = term_create(book=planned, starts=today + dt.timedelta(days=10))
    with pytest.raises(
        ConflictError, match=r"'planned' is planned for all tenants from .*without is_default"
    ):
        price_book_create(name="hasty", is_default=True)
    assert set(PriceBookTerm.objects.all()) == {standard, plan}
    plan.delete()
    price_book_create(name="now", is_default=True)
    price_book_create(name="no, this", is_default=True)
    standard.refresh_from_db()
    assert standard.ends == today - dt.timedelta(days=1)
    records = AuditRecord.objects.filter(action="price_book.term").order_by("pk")
    # First term, its end, the plan; its end and the new one; the removal of that and the last.
    assert [(bool(record.before), bool(record.after)) for record in records] == [
        (False, True),
        (True, True),
        (False, True),
        (True, True),
        (False, True),
        (True, False),
        (False, True),
    ]


def test_a_book_in_another_currency_than_the_journals_is_refused(tenant: Tenant) -> None:
    credit_grant(tenant=tenant, amount_nano=5)
    with pytest.raises(ConflictError, match="the journal is in USD"):
        price_book_create(name="first", currency="EUR")
    assert price_book_create(name="first", currency="USD").is_default


@pytest.mark.parametrize("subject", [{"base_model": ""}, {"base_model": "a/b"}, {"adapter": "acme/"}])
def test_prices_of_nothing_are_refused(priced: Tenant, subject: dict[str, str]) -> None:
    book = PriceBook.objects.get()
    values: dict[str, Any] = {"base_model": "big", **subject}
    with pytest.raises(InvalidInputError, match=r"base_model|<tenant>/<adapter>"):
        price_set(
            book=book, effective_from=JANUARY, input_nano=1, cached_input_nano=1, output_nano=1, **values
        )
    if values["base_model"]:
        with pytest.raises(InvalidInputError):
            hosting_price_set(book=book, kind="gpu_hour", effective_from=JANUARY, nano=1, **values)


def test_months_to_come_are_not_drafted(priced: Tenant) -> None:
    for month in (dt.date(9999, 12, 1), (dt.date.today() + dt.timedelta(days=40)).replace(day=1)):
        with pytest.raises(InvalidInputError, match="in the future"):
            invoice_draft(tenant="acme", month=month)


@pytest.mark.parametrize("accept", ["text/csv", "application/pdf", "application/vnd.apache.parquet"])
def test_files_come_by_their_form_whatever_is_accepted(priced: Tenant, accept: str) -> None:
    use("2026-01-05", 100_000)
    invoice = finalized(JANUARY)
    client = Client()
    client.force_login(
        user_create(email="b@acme.test", password="long-enough-7", tenant=priced, role=Role.BILLING)
    )
    answer = client.get(f"/api/v1/invoices/{invoice.pk}/file?form=csv", headers={"accept": accept})
    assert (answer.status_code, answer["content-type"]) == (200, "text/csv; charset=utf-8")


def _book(book: PriceBook) -> object:
    return price_book_create(name="twice")


def _call(book: PriceBook) -> object:
    return price_set(
        book=book, base_model="tiny", effective_from=JANUARY, input_nano=1, cached_input_nano=1, output_nano=1
    )


def _time(book: PriceBook) -> object:
    return hosting_price_set(book=book, kind="gpu_hour", effective_from=JANUARY, nano=1)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("make", [_book, _call, _time])
def test_of_two_at_once_the_second_is_told_of_the_first(make: Callable[[PriceBook], object]) -> None:
    book, told, begun = price_book_create(name="list"), list[str](), threading.Event()

    def second() -> None:
        try:
            begun.set()
            make(book)
        except ConflictError as error:
            told.append(str(error))
        finally:
            connection.close()

    other = threading.Thread(target=second)
    with transaction.atomic():
        make(book)
        other.start()
        assert begun.wait(10)
        # Long enough for it to have looked, and to wait for this transaction's end.
        other.join(0.3)
    other.join(30)
    assert len(told) == 1
    assert "already" in told[0]
