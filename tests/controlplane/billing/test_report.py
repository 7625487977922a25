"""The usage report's sums and prices, by hand."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection
from django.db.models import Q
from django.test.utils import CaptureQueriesContext

from controlplane.billing import usage_groups
from controlplane.billing.models import PriceBook
from controlplane.billing.price_list import PriceList, call_unit
from controlplane.billing.quantities import adapter_name, call_items
from controlplane.billing.selectors import spent_nano
from controlplane.billing.services import price_book_create, price_set
from controlplane.billing.terms import term_create
from controlplane.billing.usage_report import usage_report
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.metering.event_rows import StreamEntry
from controlplane.metering.models import UsageEventRow, UsageHour, UsageRollup
from controlplane.metering.services import usage_ingest
from controlplane.tenants.models import Tenant
from tests.controlplane.known import known
from tests.controlplane.metering.test_ingest import usage_event

pytestmark = pytest.mark.django_db(transaction=True)
MARCH_1, MARCH_2 = dt.date(2026, 3, 1), dt.date(2026, 3, 2)
ADAPTER = "t_acme.a_pirate.v2.0123456789ab"


@pytest.fixture(autouse=True)
def names(db: None) -> None:
    known("tiny-base", tenants=("globex",))


@pytest.fixture
def usage(tenant: Tenant) -> Tenant:
    events = [
        usage_event("1"),
        usage_event("2", adapter=ADAPTER, completion_tokens=7),
        usage_event("3", day=MARCH_2, adapter=ADAPTER, status="cancelled"),
        usage_event("4", tenant="globex", prompt_tokens=1000),
    ]
    arrived = int(dt.datetime(2026, 3, 3, tzinfo=dt.UTC).timestamp() * 1000)
    usage_ingest(
        entries=[
            StreamEntry(f"{arrived}-{number}", event.to_json().encode())
            for number, event in enumerate(events)
        ]
    )
    return tenant


def set_price(day: dt.date = MARCH_1, amount: int = 100, **changes: Any) -> None:
    price_set(
        book=changes.pop("book"),
        base_model="tiny-base",
        effective_from=day,
        input_nano=amount,
        cached_input_nano=amount // 10,
        output_nano=amount * 4,
        **changes,
    )


def report(tenant: Tenant, *groups: str) -> dict[tuple[str, ...], tuple[int, int, str | None]]:
    rows = usage_report(tenant=tenant, start=MARCH_1, end=MARCH_2, group_by=groups).rows
    return {tuple(row.group.values()): (row.requests, row.completion_tokens, row.price) for row in rows}


def test_prices_are_exact_and_follow_the_day(usage: Tenant) -> None:
    book = price_book_create(name="standard")
    set_price(book=book)
    set_price(MARCH_2, 200, book=book)
    # 6 uncached x 100 + 4 cached x 10 = 640; output 3 or 7 x 400; doubled on the second day.
    assert report(usage, "day", "adapter") == {
        ("2026-03-01", ""): (1, 3, "0.000001840"),
        ("2026-03-01", "pirate"): (1, 7, "0.000003440"),
        ("2026-03-02", "pirate"): (1, 3, "0.000003680"),
    }
    total = usage_report(tenant=usage, start=MARCH_1, end=MARCH_2).total
    assert (total.requests, total.prompt_tokens, total.price) == (3, 30, "0.000008960")


def test_an_adapters_own_price_comes_first(usage: Tenant) -> None:
    book = price_book_create(name="standard")
    set_price(book=book)
    set_price(amount=1000, book=book, adapter="acme/pirate")
    assert report(usage, "adapter") == {("",): (1, 3, "0.000001840"), ("pirate",): (2, 10, "0.000052800")}


def test_what_has_no_price_is_flagged_and_never_zero(usage: Tenant) -> None:
    assert all(price is None for _, _, price in report(usage, "day").values())
    set_price(MARCH_2, book=price_book_create(name="standard"))
    full = usage_report(tenant=usage, start=MARCH_1, end=MARCH_2)
    assert [(row.price, row.unpriced) for row in full.rows] == [(None, True), ("0.000001840", False)]
    assert full.total.unpriced


def test_every_group_and_another_tenants_usage_stays_out(usage: Tenant) -> None:
    assert set(report(usage, "version", "status", "key", "base", "alias")) == {
        ("", "ok", "k1", "tiny-base", ""),
        (ADAPTER, "ok", "k1", "tiny-base", ""),
        (ADAPTER, "cancelled", "k1", "tiny-base", ""),
    }


@pytest.mark.parametrize("groups", [(), ("day",), ("hour", "adapter")])
def test_a_filter_that_nothing_fits_is_an_empty_report(usage: Tenant, groups: tuple[str, ...]) -> None:
    for only in (Q(adapter__in=[]), Q(adapter="none")):
        found = usage_report(tenant=usage, start=MARCH_1, end=MARCH_2, group_by=groups, only=only)
        assert (found.rows if groups else (), found.total.requests) == ((), 0)


def test_usage_by_operation_has_its_images(tenant: Tenant) -> None:
    events = [
        usage_event("1", images=3),
        usage_event("2", images=1, adapter=ADAPTER),
        usage_event("3", operation="rerank", completion_tokens=0),
        usage_event("4", operation=""),
    ]
    arrived = int(dt.datetime(2026, 3, 3, tzinfo=dt.UTC).timestamp() * 1000)
    usage_ingest(
        entries=[StreamEntry(f"{arrived}-{at}", event.to_json().encode()) for at, event in enumerate(events)]
    )
    for groups in (("operation",), ("operation", "hour")):
        rows = usage_report(tenant=tenant, start=MARCH_1, end=MARCH_1, group_by=groups).rows
        found = [(row.group["operation"], row.requests, row.images) for row in rows]
        assert found == [("", 1, 0), ("chat", 2, 4), ("rerank", 1, 0)]


def test_a_report_reads_sums_alone(usage: Tenant) -> None:
    """However many events there are, a page that shows usage reads none of them."""
    set_price(book=price_book_create(name="standard"))
    with CaptureQueriesContext(connection) as queries:
        before = usage_report(tenant=usage, start=MARCH_1, end=MARCH_2, group_by=("day", "adapter"))
    events = UsageEventRow._meta.db_table
    assert not [query["sql"] for query in queries if events in query["sql"]]
    UsageEventRow.objects.all().delete()
    assert usage_report(tenant=usage, start=MARCH_1, end=MARCH_2, group_by=("day", "adapter")) == before


def test_hours_sum_to_their_day(usage: Tenant) -> None:
    set_price(book=price_book_create(name="standard"))
    hours = usage_report(tenant=usage, start=MARCH_1, end=MARCH_2, group_by=("hour", "arm", "backend"))
    days = usage_report(tenant=usage, start=MARCH_1, end=MARCH_2)
    assert hours.total == days.total
    assert {row.group["hour"] for row in hours.rows} == {f"{day}T12:00Z" for day in (MARCH_1, MARCH_2)}
    with pytest.raises(InvalidInputError, match="0 to 30 days"):
        usage_report(tenant=usage, start=MARCH_1, end=MARCH_1 + dt.timedelta(days=31), group_by=["hour"])


def test_bad_ranges_groups_and_amounts_are_refused(tenant: Tenant) -> None:
    with pytest.raises(InvalidInputError, match="after start"):
        usage_report(tenant=tenant, start=MARCH_2, end=MARCH_1)
    with pytest.raises(InvalidInputError, match="cannot group by 'week'"):
        usage_report(tenant=tenant, start=MARCH_1, end=MARCH_2, group_by=["week"])
    book = price_book_create(name="standard")
    with pytest.raises(InvalidInputError, match="input_nano"):
        set_price(amount=-1, book=book)
    set_price(book=book)
    with pytest.raises(ConflictError, match="another day"):
        set_price(book=book)


def test_a_report_of_too_many_rows_is_refused_and_says_what_to_ask_for(
    usage: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_price(book=price_book_create(name="standard"))
    whole = usage_report(tenant=usage, start=MARCH_1, end=MARCH_2, group_by=("day", "adapter"))
    assert len(whole.rows) == 3
    for bound in ("MOST_ROWS", "_MOST_READ"):
        monkeypatch.setattr(usage_groups, bound, 3)
        assert usage_report(tenant=usage, start=MARCH_1, end=MARCH_2, group_by=("day", "adapter")) == whole
        monkeypatch.setattr(usage_groups, bound, 2)
        with pytest.raises(InvalidInputError, match="choose fewer days, or fewer of day, adapter"):
            usage_report(tenant=usage, start=MARCH_1, end=MARCH_2, group_by=("day", "adapter"))
        one = usage_report(tenant=usage, start=MARCH_1, end=MARCH_2, group_by=("key",))
        assert one.total == whole.total
        monkeypatch.undo()


@pytest.mark.parametrize("by", ["key", "day", "hour"])
def test_a_report_reaches_to_the_last_day_that_there_is(tenant: Tenant, by: str) -> None:
    last = dt.date.max
    book = price_book_create(name="standard")
    set_price(book=book)
    set_price(last, book=book)
    assert usage_report(tenant=tenant, start=last, end=last, group_by=(by,)).rows == ()
    before = last - dt.timedelta(days=2)
    pieces = [(before, last - dt.timedelta(days=1)), (last, last)]
    assert PriceList.load().spans(start=before, end=last) == pieces


def test_all_tenants_together_by_tenant_and_day(usage: Tenant) -> None:
    set_price(book=price_book_create(name="standard"))
    fleet = usage_report(tenant=None, start=MARCH_1, end=MARCH_2, group_by=("tenant", "day"))
    assert {tuple(row.group.values()): row.requests for row in fleet.rows} == {
        ("acme", "2026-03-01"): 2,
        ("acme", "2026-03-02"): 1,
        ("globex", "2026-03-01"): 1,
    }
    own = usage_report(tenant=usage, start=MARCH_1, end=MARCH_2).total.price
    foreign = next(row.price for row in fleet.rows if row.group["tenant"] == "globex")
    assert own is not None
    assert foreign is not None
    assert Decimal(own) + Decimal(foreign) == Decimal(fleet.total.price or 0)


def test_what_is_added_up_before_it_is_priced_comes_to_the_same(usage: Tenant) -> None:
    """By whatever prices depend on: nothing, a day, an adapter, a backend, who failed; each held against the
    sum over the days' own rows."""
    book = price_book_create(name="standard")
    first = dt.date(2026, 1, 1)
    price: dict[str, Any] = {"book": book, "cached_input_nano": 3, "base_model": "tiny-base"}
    for sums in (UsageRollup, UsageHour):
        sums.objects.filter(tenant="acme", day=MARCH_2).update(status="error", backend="vllm")
    steps: list[dict[str, Any]] = [
        {"effective_from": first, "input_nano": 7, "output_nano": 11},
        {"effective_from": MARCH_2, "input_nano": 70, "output_nano": 11},
        {"effective_from": first, "input_nano": 700, "output_nano": 1, "adapter": "acme/pirate"},
        {
            "effective_from": first,
            "input_nano": 9,
            "output_nano": 5,
            "adapter": "acme/pirate",
            "backend": "vllm",
        },
        {"effective_from": MARCH_1, "input_nano": 90, "output_nano": 5, "request_nano": 1001},
        {
            "effective_from": MARCH_2,
            "input_nano": 8,
            "output_nano": 5,
            "request_nano": 10**6,
            "adapter": "acme/pirate",
            "backend": "vllm",
        },
    ]
    seen = set()
    for step in steps:
        price_set(**price, **step)
        prices, expected = PriceList.load(), 0
        for row in UsageRollup.objects.filter(tenant="acme"):
            found = prices.call(
                tenant="acme",
                day=row.day,
                base_model=row.base_model,
                adapter=adapter_name(row.adapter),
                backend=row.backend,
            )
            assert found is not None
            used = call_items(row, own_reasoning=found.reasoning_nano is not None)
            expected += sum(quantity * (call_unit(found, item) or 0) for item, quantity in used)
        for groups in ((), ("key",), ("adapter",), ("day",), ("hour",), ("status", "backend")):
            report = usage_report(tenant=usage, start=MARCH_1, end=MARCH_2, group_by=groups)
            assert report.total.price == f"{expected * Decimal('1e-9'):.9f}", (step, groups)
            assert report.total.requests == 3
        assert spent_nano(tenant="acme", key_id=None, start=MARCH_1, end=MARCH_2) == expected
        seen.add(expected)
    assert len(seen) == len(steps), "each step changed something"


def test_a_term_that_begins_within_the_range_splits_it(usage: Tenant) -> None:
    for name, amount in (("everyone", 10), ("own", 1000)):
        set_price(dt.date(2026, 1, 1), amount, book=price_book_create(name=name))
    term_create(book=PriceBook.objects.get(name="own"), tenant=usage, starts=MARCH_2, ends=MARCH_2)
    report = usage_report(tenant=usage, start=MARCH_1, end=MARCH_2, group_by=("key",))
    days = usage_report(tenant=usage, start=MARCH_1, end=MARCH_2, group_by=("day",))
    assert report.total.price == days.total.price
    assert len({row.price for row in days.rows}) == 2
