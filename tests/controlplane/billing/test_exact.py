"""Whatever comes late, twice, after a crash or at another price: events, sums, books and invoices agree."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import json
import uuid
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.db.models import Sum
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from contracts.usage_event import UsageEvent
from controlplane.billing.credit_notes.selectors import in_force
from controlplane.billing.credit_notes.services import credit_note_issue
from controlplane.billing.invoices.services import invoice_draft
from controlplane.billing.ledger.posting import books_drift, usage_post
from controlplane.billing.ledger.selectors import balances, invoice_open_nano
from controlplane.billing.models import (
    Account,
    CreditNote,
    Invoice,
    InvoiceLine,
    JournalEntry,
    Price,
    PriceBookTerm,
    UsagePosting,
)
from controlplane.billing.services import price_book_create, price_set
from controlplane.errors import ConflictError
from controlplane.metering.event_rows import StreamEntry
from controlplane.metering.models import UsageEventRow, UsageRollup
from controlplane.metering.services import usage_ingest
from controlplane.tenants.models import Tenant
from tests.controlplane.billing.programs import BUSY, DAYS, MONTHS, close, event, ingest, post, run, steps
from tests.controlplane.known import known

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def keeps_old_days(graftwork: Path, settings: Any) -> None:
    """February 2024 had a 29th."""
    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, usage_keep_days=36_500)


@pytest.fixture(autouse=True)
def names(db: None) -> None:
    known("tiny", "big", tenants=())


def expected() -> int | None:
    """From the events alone, one by one, by the rules as the documents have them."""
    prices, terms = list(Price.objects.select_related("book")), list(PriceBookTerm.objects.all())
    total = 0
    for row in UsageEventRow.objects.filter(tenant="acme"):
        name = row.adapter.split(".")[1].removeprefix("a_") if row.adapter else ""
        for tenant in ("acme", ""):
            books = [
                term.book_id
                for term in terms
                if term.tenant == tenant and term.starts <= row.day <= (term.ends or row.day)
            ]
            fits = [
                price
                for price in prices
                if price.book_id in books
                and price.base_model == row.base_model
                and price.effective_from <= row.day
                and price.backend in ("", row.backend)
                and price.adapter in ("", f"acme/{name}")
            ]
            best = max(
                fits,
                default=None,
                key=lambda price: (price.adapter != "", price.backend != "", price.effective_from),
            )
            if best is not None:
                total += (row.prompt_tokens - row.cached_tokens) * best.input_nano
                thought = best.output_nano if best.reasoning_nano is None else best.reasoning_nano
                total += row.cached_tokens * best.cached_input_nano + row.reasoning_tokens * thought
                total += (row.completion_tokens - row.reasoning_tokens) * best.output_nano
                total += best.request_nano * (row.status != "error")
                break
    return total


_USED = [
    event(BUSY[0], number, prompt_tokens=100, completion_tokens=9, reasoning_tokens=4) for number in (50, 51)
]
_LATER = event(BUSY[2], 52, prompt_tokens=100)
_OWN_PRICE = ("own", "tiny", "", "", BUSY[0])
_OWN = ("term", (BUSY[0], 1))
_TAXED = ("tax", (DAYS[0], 190_000))
# Of both invoices one before the other and after it, parts of a cent among them; of a line, and of the rest.
_NOTED = [
    _TAXED,
    ("price", (*_OWN_PRICE, 10**6 + 7, 10**5, 10**6, 10**4)),
    ("term", (BUSY[0], 20)),
    ("ingest", _USED),
    ("ingest", [event(BUSY[1], 52, prompt_tokens=100)]),
    ("invoice", MONTHS[0]),
    ("note", (3, 10**6)),
    ("note", (0, 12_345_678)),
    ("invoice", MONTHS[1]),
    ("note", (1, None)),
    ("ingest", _USED),
]


# Usage consumes the whole deposit, the bank reverses it, and the next invoice asks for the amount.
_BOUNCED = [
    ("price", (*_OWN_PRICE, 10**6 + 7, 10**5, 10**6, 10**4)),
    ("term", (BUSY[0], 20)),
    ("ingest", _USED),
    ("deposit", 10**8 + 3),
    ("invoice", MONTHS[0]),
    ("bounce", 0),
    ("draft", MONTHS[1]),
    ("invoice", MONTHS[1]),
    ("ingest", _USED),
]
_UNDONE = [("void", 0), ("note", (0, 10**6)), ("bounce", 0), ("void", 2)]


# No shrinking: a look at the database a step makes it minutes, on a busy machine many.
@pytest.mark.timeout(1500)
@settings(
    max_examples=8,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
@example(program=[("ingest", _USED), ("invoice", MONTHS[0]), ("price", (*_OWN_PRICE, 1, 2, 3, 4)), _OWN])
@example(program=[("ingest", _USED), ("invoice", MONTHS[0]), ("price", (*_OWN_PRICE, 1, 2, 3, 4, 7)), _OWN])
@example(program=[("ingest", _USED[:1]), ("invoice", MONTHS[0]), ("ingest", _USED), ("invoice", MONTHS[1])])
@example(
    program=[
        ("draft", MONTHS[0]),
        ("ingest", [_LATER]),
        ("invoice", MONTHS[1]),
        ("finalize", MONTHS[0]),
        ("ingest", _USED),
        ("post", None),
        ("invoice", MONTHS[2]),
    ]
)
@example(
    program=[("ingest", _USED), ("post", None), ("price", (*_OWN_PRICE, 99, 9, 9, 9)), _OWN, ("crash", 1)]
)
@example(program=_NOTED)
@example(program=[("deposit", 10**8 + 3), *_NOTED])
@example(program=_NOTED[1:])
@example(program=[("deposit", 10**8 + 3), *_NOTED, *_UNDONE])
@example(program=_BOUNCED)
@example(program=[_TAXED, *_BOUNCED, ("note", (1, 10**6))])
@given(program=st.lists(steps, min_size=6, max_size=16))
@pytest.mark.costly("a property over programs of events and invoices")
def test_events_sums_books_and_invoices_agree(tenant: Tenant, program: list[tuple[str, Any]]) -> None:
    check(program)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@settings(max_examples=80, suppress_health_check=list(HealthCheck), phases=(Phase.reuse, Phase.generate))
@given(program=st.lists(steps, min_size=6, max_size=16))
def test_many_programs_agree(tenant: Tenant, program: list[tuple[str, Any]]) -> None:
    check(program)


def check(program: list[tuple[str, Any]]) -> None:
    with transaction.atomic():
        run(program)
        noted = CreditNote.objects.count()
        assert noted == 3 or program[-len(_NOTED) + 1 :] != _NOTED[1:], "the examples issue notes"
        asked_for = Invoice.objects.filter(shortfall_nano__gt=0).exists()
        assert asked_for or _BOUNCED[-1:] != program[-1:] or _BOUNCED[5] not in program, "the example bounces"
        post()
        before = JournalEntry.objects.count()
        post()
        assert JournalEntry.objects.count() == before, "posting twice is posting once"
        for month in MONTHS:
            close(month)
        # A correction after the last close appears on the next invoice.
        close(dt.date(2024, 4, 1))
        agree()
        for invoice in Invoice.objects.filter(tenant="acme"):
            with contextlib.suppress(ConflictError):
                credit_note_issue(invoice=invoice, reason="other")
        agree()
        whole()
        transaction.set_rollback(True)


def agree() -> None:
    total = expected()
    tokens = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")
    sums = UsageRollup.objects.filter(tenant="acme").aggregate(*map(Sum, tokens))
    assert sums == UsageEventRow.objects.filter(tenant="acme").aggregate(*map(Sum, tokens))
    postings = UsagePosting.objects.aggregate(total=Sum("amount_nano"))["total"] or 0
    lines = InvoiceLine.objects.aggregate(total=Sum("amount_nano"))["total"] or 0
    accounts = balances(tenant="acme")
    assert not Invoice.objects.filter(tenant="acme", status="draft").exists(), "every month could be closed"
    assert total == -accounts.get(Account.REVENUE, 0) == postings == lines
    asked_for = Invoice.objects.aggregate(tax=Sum("tax_nano"))["tax"] or 0
    standing = CreditNote.objects.filter(voids=None, voidings=None)
    back = standing.aggregate(tax=Sum("tax_nano"), net=Sum("net_nano"))
    assert -accounts.get(Account.TAX, 0) == asked_for - (back["tax"] or 0)
    assert accounts.get(Account.ALLOWANCE, 0) == (back["net"] or 0)
    assert sum(accounts.values()) == 0
    assert books_drift(tenant="acme", start=DAYS[0], end=DAYS[-1]) == {}


def whole() -> None:
    """Every invoice is credited to the unit, and the payments are returned."""
    for invoice in Invoice.objects.filter(tenant="acme"):
        names = ("net_nano", "tax_nano", "pre_payment_nano", "post_payment_nano")
        sums = in_force(invoice=invoice).aggregate(*map(Sum, names))
        assert [sums[f"{name}__sum"] or 0 for name in names] == [
            invoice.net_nano,
            invoice.tax_nano,
            invoice.due_nano - invoice.shortfall_nano,
            invoice.prepaid_nano,
        ]
        assert invoice_open_nano(invoice=invoice) == invoice.shortfall_nano, "it was paid, and came back"
    accounts = balances(tenant="acme")
    shortfalls = Invoice.objects.aggregate(total=Sum("shortfall_nano"))["total"] or 0
    assert (accounts.get(Account.RECEIVABLE, 0), accounts.get(Account.TAX, 0)) == (shortfalls, 0)
    numbers = CreditNote.objects.order_by("number").values_list("number", flat=True)
    assert list(numbers) == list(range(1, len(numbers) + 1))


def test_each_day_is_its_own_by_utc_at_the_ends_of_months_and_on_a_leap_day(tenant: Tenant) -> None:
    book = price_book_create(name="standard")
    price_set(
        book=book,
        base_model="tiny",
        effective_from=dt.date(2024, 2, 29),
        input_nano=3,
        cached_input_nano=0,
        output_nano=0,
    )
    price_set(
        book=book,
        base_model="tiny",
        effective_from=dt.date(2024, 3, 1),
        input_nano=5,
        cached_input_nano=0,
        output_nano=0,
    )
    for number, day in enumerate((dt.date(2024, 2, 28), dt.date(2024, 2, 29), dt.date(2024, 3, 1))):
        ingest(event(day, number, prompt_tokens=100))
    post()
    booked: dict[dt.date, int] = defaultdict(int)
    for row in UsagePosting.objects.all():
        booked[row.day] += row.amount_nano
    assert dict(booked) == {dt.date(2024, 2, 29): 300, dt.date(2024, 3, 1): 500}
    february = invoice_draft(tenant="acme", month=dt.date(2024, 2, 1))
    assert february.lines_nano == 300
    assert february.unpriced, "the 28th has no price"


@pytest.mark.parametrize("zone", ["America/New_York", "Australia/Lord_Howe", "Europe/Berlin"])
def test_a_days_length_elsewhere_changes_nothing(tenant: Tenant, zone: str, settings: Any) -> None:
    """Events through both nights in which clocks there change, every half an hour of real time."""
    settings.TIME_ZONE = zone
    book = price_book_create(name="standard")
    price_set(
        book=book,
        base_model="tiny",
        effective_from=dt.date(2026, 1, 1),
        input_nano=7,
        cached_input_nano=0,
        output_nano=0,
    )
    made: list[UsageEvent] = []
    days: dict[dt.date, int] = defaultdict(int)
    for first in (dt.date(2026, 3, 7), dt.date(2026, 3, 28), dt.date(2026, 4, 4), dt.date(2026, 10, 24)):
        moment = dt.datetime.combine(first, dt.time(), dt.UTC)
        for half in range(3 * 48):
            at = int((moment + dt.timedelta(minutes=30 * half)).timestamp() * 1000)
            value = (at << 80) | (7 << 76) | (2 << 62) | len(made)
            changes = {"event_id": str(uuid.UUID(int=value)), "prompt_tokens": 1, "started_at": at}
            made.append(event(first, len(made), **changes))
            days[(moment + dt.timedelta(minutes=30 * half)).date()] += 7
    arrived = int(dt.datetime(2026, 11, 2, tzinfo=dt.UTC).timestamp() * 1000)
    usage_ingest(
        entries=[StreamEntry(f"{arrived}-{n}", one.to_json().encode()) for n, one in enumerate(made)]
    )
    usage_post(tenant="acme", start=dt.date(2026, 3, 1), end=dt.date(2026, 10, 31))
    booked = UsagePosting.objects.values_list("day").annotate(total=Sum("amount_nano"))
    assert dict(booked) == dict(days)
    assert set(days.values()) == {48 * 7}


def test_the_books_refuse_to_be_changed(tenant: Tenant) -> None:
    book = price_book_create(name="standard")
    price_set(
        book=book, base_model="tiny", effective_from=DAYS[0], input_nano=3, cached_input_nano=0, output_nano=0
    )
    ingest(event(DAYS[0], 1, prompt_tokens=100))
    post()
    entry = JournalEntry.objects.get()
    assert (entry.debit, entry.credit, entry.amount_nano) == ("unbilled", "revenue", 300)
    for rows in (JournalEntry.objects.all(), UsagePosting.objects.all()):
        with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
            rows.update(amount_nano=1)
        with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
            rows._raw_delete(rows.db)
    fields: dict[str, Any] = {
        "tenant": "acme",
        "at": entry.at,
        "day": DAYS[0],
        "kind": "reversal",
        "currency": "USD",
        "debit": "revenue",
        "credit": "unbilled",
        "amount_nano": 300,
        "reverses": entry,
    }
    changes: list[tuple[dict[str, Any], str]] = [
        ({"amount_nano": 299}, "swap its accounts"),
        ({"debit": "unbilled", "credit": "revenue"}, "swap its accounts"),
        ({"tenant": "globex"}, "swap its accounts"),
        ({"amount_nano": 0, "reverses": None}, "constraint"),
        ({"amount_nano": -300, "reverses": None}, "constraint"),
        ({"debit": "unbilled", "reverses": None}, "constraint"),
        ({"debit": "pocket", "reverses": None}, "constraint"),
    ]
    for number, (change, why) in enumerate(changes, start=2):
        with pytest.raises(IntegrityError, match=why), transaction.atomic():
            JournalEntry.objects.create(**fields | {"number": number} | change)
    JournalEntry.objects.create(**fields, number=2)
    with pytest.raises(IntegrityError), transaction.atomic():
        JournalEntry.objects.create(**fields, number=3)


def test_late_usage_and_a_new_price_come_as_entries_of_their_own(tenant: Tenant) -> None:
    book = price_book_create(name="standard")
    amounts: dict[str, Any] = {"cached_input_nano": 0, "output_nano": 0}
    price_set(book=book, base_model="tiny", effective_from=DAYS[0], input_nano=3, **amounts)
    ingest(event(DAYS[3], 1, prompt_tokens=100))
    post()
    ingest(event(DAYS[3], 2, prompt_tokens=10))
    post()
    kinds = list(JournalEntry.objects.order_by("number").values_list("kind", "amount_nano"))
    assert kinds == [("usage", 300), ("usage", 30)]
    price_set(book=book, base_model="tiny", effective_from=DAYS[2], input_nano=4, **amounts)
    post()
    kinds = list(JournalEntry.objects.order_by("number").values_list("kind", "amount_nano"))[2:]
    assert kinds == [("reversal", 300), ("reversal", 30), ("usage", 440)]
    assert balances(tenant="acme") == {"unbilled": 440, "revenue": -440}
    assert json.dumps(list(JournalEntry.objects.values_list("number", flat=True))) == "[5, 4, 3, 2, 1]"
