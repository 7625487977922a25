"""The usage report's sums and prices, by hand."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

from controlplane.billing.selectors import usage_report
from controlplane.billing.services import price_book_create, price_set
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.metering.services import StreamEntry, usage_ingest
from controlplane.tenants.models import Tenant
from tests.controlplane.metering.test_ingest import usage_event

pytestmark = pytest.mark.django_db(transaction=True)
MARCH_1, MARCH_2 = dt.date(2026, 3, 1), dt.date(2026, 3, 2)
ADAPTER = "t_acme.a_pirate.v2.0123456789ab"


@pytest.fixture
def usage(tenant: Tenant) -> Tenant:
    events = [
        usage_event("1"),
        usage_event("2", adapter=ADAPTER, completion_tokens=7),
        usage_event("3", day=MARCH_2, adapter=ADAPTER, status="cancelled"),
        usage_event("4", tenant="globex", prompt_tokens=1000),
    ]
    usage_ingest(entries=[StreamEntry(event.request_id, event.to_json().encode()) for event in events])
    return tenant


def set_price(day: dt.date = MARCH_1, amount: int = 100, **changes: Any) -> None:
    price_set(
        book=changes.pop("book"), base_model="tiny-base", effective_from=day, input_nano=amount,
        cached_input_nano=amount // 10, output_nano=amount * 4, **changes,
    )  # fmt: skip


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
