"""Programs of what happens to usage, prices and bills, in any order, for the tests that compare the sums."""

from __future__ import annotations

import contextlib
import datetime as dt
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from unittest.mock import patch

from django.db import transaction
from hypothesis import strategies as st

from contracts.usage_event import UsageEvent
from controlplane.billing.credit_notes.services import credit_note_issue, credit_note_void
from controlplane.billing.invoices.services import invoice_draft, invoice_finalize
from controlplane.billing.ledger import posting
from controlplane.billing.ledger.credits import entry_reverse, payment_record
from controlplane.billing.ledger.posting import usage_post
from controlplane.billing.models import CreditNote, Invoice, JournalEntry
from controlplane.billing.services import price_book_create, price_set
from controlplane.billing.taxes.services import treatment_set
from controlplane.billing.terms import term_create
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.metering.event_rows import StreamEntry
from controlplane.metering.models import DeadUsageEvent
from controlplane.metering.services import usage_ingest
from controlplane.tenants.models import Tenant
from tests.controlplane.billing.parties import parties_state

START = dt.date(2024, 1, 30)
DAYS = [START + dt.timedelta(days=n) for n in range(33)]
"""A month's end, a leap February with its 29th, and the first days of March."""
BUSY = (DAYS[1], DAYS[2], DAYS[30])
"""Days that have usage: few, so that much of it meets: the end of January, February's first and 29th."""
MONTHS = [dt.date(2024, month, 1) for month in (1, 2, 3)]
ARRIVED = int(dt.datetime(2024, 4, 2, tzinfo=dt.UTC).timestamp() * 1000)
ADAPTERS = (
    "",
    "t_acme.a_pirate.v1.0123456789ab",
    "t_acme.a_pirate.v2.ba9876543210",
    "t_acme.a_bot.v1." + "c" * 12,
)


def event(day: dt.date, number: int, **changes: Any) -> UsageEvent:
    """A usage event of `day` whose identity is `number`."""
    moment = dt.datetime.combine(day, dt.time(23, 59, 59, 999000), dt.UTC)
    stamp = int(moment.timestamp() * 1000)
    value = (stamp << 80) | (7 << 76) | (2 << 62) | number
    values: dict[str, Any] = {
        "event_id": str(uuid.UUID(int=value)),
        "tenant": "acme",
        "project": "default",
        "key_id": "k1",
        "request_id": f"r{number}",
        "attempt": 0,
        "requested_model": "m",
        "alias": "",
        "arm": "",
        "adapter": "",
        "base_model": "tiny",
        "operation": "",
        "backend": "worker",
        "endpoint": "chat",
        "status": "ok",
        "error_code": "",
        "prompt_tokens": 0,
        "cached_tokens": 0,
        "completion_tokens": 0,
        "reasoning_tokens": 0,
        "images": 0,
        "estimated": False,
        "ttft_ms": None,
        "itl_ms": None,
        "duration_ms": 1.0,
        "started_at": stamp,
        "gateway_id": "g",
    }
    return UsageEvent(**(values | changes))


def ingest(*events: UsageEvent) -> None:
    usage_ingest(
        entries=[
            StreamEntry(f"{ARRIVED}-{index}", made.to_json().encode()) for index, made in enumerate(events)
        ]
    )
    assert not DeadUsageEvent.objects.exists()


@st.composite
def events(draw: st.DrawFn) -> UsageEvent:
    number = draw(st.integers(0, 30))
    # The identity decides everything, as with a real event that is sent twice.
    seed = number * 7919
    return event(
        BUSY[seed % len(BUSY)],
        number,
        prompt_tokens=seed % 1001,
        cached_tokens=(seed % 1001) // 3,
        completion_tokens=seed % 77,
        reasoning_tokens=seed % 77 // 2,
        key_id=f"k{seed % 2}",
        adapter=ADAPTERS[seed % len(ADAPTERS)],
        base_model=("tiny", "big")[seed % 3 == 0],
        backend=("worker", "vllm")[seed % 5 == 0],
        status=("ok", "error", "cancelled")[seed % 3],
    )


nanos = st.integers(0, 10**7)
ingests = st.tuples(st.just("ingest"), st.lists(events(), min_size=2, max_size=8))
prices = st.tuples(
    st.just("price"),
    st.tuples(
        st.sampled_from(["standard", "own"]),
        st.sampled_from(["tiny", "big"]),
        st.sampled_from(["", "", "acme/pirate", "acme/bot"]),
        st.sampled_from(["", "", "vllm"]),
        st.sampled_from([*BUSY, *DAYS[:4]]),
        nanos,
        nanos,
        nanos,
        nanos,
        st.one_of(st.none(), nanos),
    ),
)
terms = st.tuples(st.just("term"), st.tuples(st.sampled_from(DAYS), st.integers(0, 20)))
posts = st.tuples(st.just("post"), st.none())
crashes = st.tuples(st.just("crash"), st.integers(0, 3))
invoices = st.tuples(st.just("invoice"), st.sampled_from([MONTHS[0], *MONTHS]))
notes = st.tuples(st.just("note"), st.tuples(st.integers(0, 3), st.one_of(st.none(), st.integers(1, 10**7))))
treatments = st.tuples(st.just("tax"), st.tuples(st.sampled_from(DAYS), st.integers(0, 300_000)))
deposits = st.tuples(st.just("deposit"), st.integers(1, 10**9))
voids = st.tuples(st.just("void"), st.integers(0, 5))
bounces = st.tuples(st.just("bounce"), st.integers(0, 3))
drafts = st.tuples(st.just("draft"), st.sampled_from(MONTHS))
finals = st.tuples(st.just("finalize"), st.sampled_from(MONTHS))
steps = st.one_of(
    ingests,
    posts,
    prices,
    ingests,
    posts,
    invoices,
    terms,
    crashes,
    drafts,
    finals,
    notes,
    treatments,
    deposits,
    voids,
    bounces,
)


class Killed(BaseException):
    """The process dies here."""


def post() -> None:
    usage_post(tenant="acme", start=DAYS[0], end=DAYS[-1])


def post_and_die(after: int) -> None:
    """Post usage as a process that is killed after `after` days: its transaction is rolled back."""
    left = iter(range(after))
    day_drafts = posting._day_drafts

    def dying(*arguments: Any) -> Iterator[Any]:
        if next(left, None) is None:
            raise Killed
        return day_drafts(*arguments)

    with patch.object(posting, "_day_drafts", dying), patch.object(posting, "_PER_TRANSACTION", 2):
        try:
            with transaction.atomic():
                post()
        except Killed:
            pass


def run(steps: list[tuple[str, Any]]) -> None:
    books = {"standard": price_book_create(name="standard"), "own": price_book_create(name="own")}
    tenant = Tenant.objects.get(pk="acme")
    parties_state()
    for base in ("tiny", "big"):
        price_set(
            book=books["standard"],
            base_model=base,
            effective_from=BUSY[0],
            input_nano=11,
            cached_input_nano=5,
            output_nano=13,
            request_nano=17,
        )
    for kind, value in steps:
        match kind:
            case "ingest":
                ingest(*value)
            case "price":
                name, base, adapter, backend, day, one, two, three, four, *thought = value
                with contextlib.suppress(ConflictError):
                    price_set(
                        book=books[name],
                        base_model=base,
                        adapter=adapter,
                        backend=backend,
                        effective_from=day,
                        input_nano=one,
                        cached_input_nano=two,
                        output_nano=three,
                        request_nano=four,
                        reasoning_nano=thought[0] if thought else None,
                    )
            case "term":
                day, length = value
                with contextlib.suppress(ConflictError):
                    term_create(book=books["own"], starts=day, ends=day + dt.timedelta(length), tenant=tenant)
            case "post":
                post()
            case "crash":
                post_and_die(value)
            case _:
                money(tenant, kind, value)


def money(tenant: Tenant, kind: str, value: Any) -> None:
    """A step of invoices, credit notes, taxes or payments."""
    match kind:
        case "invoice":
            close(value)
        case "draft":
            with contextlib.suppress(ConflictError):
                invoice_draft(tenant="acme", month=value)
        case "finalize":
            finalize_drafted(value)
        case "note":
            take_back(*value)
        case "deposit":
            payment_record(tenant=tenant, amount_nano=value)
        case "void" | "bounce":
            undo(kind, value)
        case "tax":
            with contextlib.suppress(ConflictError):
                treatment_set(
                    tenant=tenant,
                    starts=value[0],
                    kind="taxed",
                    label="VAT",
                    rate_percent=Decimal(value[1]).scaleb(-4),
                )


def undo(kind: str, which: int) -> None:
    """A credit note that was issued, or a deposit that the bank took back, used or not."""
    notes = CreditNote.objects.filter(tenant="acme").order_by("number")
    deposits = JournalEntry.objects.filter(tenant="acme", kind="deposit").order_by("number")
    # Undone before, or what the note gave is used.
    with contextlib.suppress(ConflictError):
        if kind == "void" and notes:
            credit_note_void(credit_note=notes[which % len(notes)], memo="meant another")
        elif kind == "bounce" and deposits:
            entry_reverse(entry=deposits[which % len(deposits)], memo="bounced")


def close(month: dt.date) -> None:
    # Closed before, or an earlier one is open.
    with contextlib.suppress(ConflictError):
        invoice_finalize(invoice=invoice_draft(tenant="acme", month=month), allow_unpriced=True)


def finalize_drafted(month: dt.date) -> None:
    """Finalize the month's drafts as staff with an outdated list would."""
    for invoice in Invoice.objects.filter(tenant="acme", month=month):
        with contextlib.suppress(ConflictError):
            invoice_finalize(invoice=invoice, allow_unpriced=True)


def take_back(which: int, amount: int | None) -> None:
    """Credit an amount, or the rest, of one of the invoices or of its first line."""
    invoices = list(Invoice.objects.filter(tenant="acme", status="finalized").order_by("number"))
    if not invoices:
        return
    invoice = invoices[which % len(invoices)]
    # The invoice has nothing left to credit, or no line.
    with contextlib.suppress(ConflictError, InvalidInputError):
        if which == 3:
            credit_note_issue(invoice=invoice, reason="other", lines={1: amount})
        else:
            credit_note_issue(invoice=invoice, reason="other", amount_nano=amount)
