"""The periodic rounds after usage: their days, their prices, and their comparison with the books."""

from __future__ import annotations

import datetime as dt
import logging
from unittest.mock import patch

import pytest

from controlplane.billing.ledger import posting
from controlplane.billing.ledger.posting import books_check, usage_post, usage_post_all
from controlplane.billing.ledger_head import head_lock
from controlplane.billing.models import LedgerHead, PostedDay, PriceBook, UsagePosting
from controlplane.billing.price_list import PriceList
from controlplane.billing.services import price_set
from controlplane.billing.tasks import nightly
from controlplane.metering.models import UsageRollup
from controlplane.metering.services import keep_from
from controlplane.tenants.models import Tenant
from tests.controlplane.billing.test_invoices import FEBRUARY, JANUARY, MARCH, priced, use

__all__ = ["priced"]
pytestmark = pytest.mark.django_db


def test_sums_are_followed_for_as_long_as_they_are_there(priced: Tenant) -> None:
    old = keep_from() - dt.timedelta(days=40)
    price_set(
        book=PriceBook.objects.get(),
        base_model="tiny",
        effective_from=old,
        input_nano=7,
        cached_input_nano=0,
        output_nano=0,
    )
    use(old.isoformat(), 10)
    assert nightly() == 1
    assert UsagePosting.objects.get().amount_nano == 70


def test_prices_are_those_that_hold_when_the_books_are_locked(priced: Tenant) -> None:
    use("2026-02-05", 1_000)

    def locked(*, tenant: str) -> LedgerHead:
        # Another poster was faster, with a price that was set after this round began.
        price_set(
            book=PriceBook.objects.get(),
            base_model="tiny",
            effective_from=FEBRUARY,
            input_nano=9,
            cached_input_nano=0,
            output_nano=0,
        )
        usage_post(tenant=tenant, start=JANUARY, end=MARCH)
        return head_lock(tenant=tenant)

    calls = iter([locked])
    with patch.object(posting, "head_lock", lambda **names: next(calls, head_lock)(**names)):
        assert usage_post(tenant="acme", start=JANUARY, end=MARCH) == 0
    assert UsagePosting.objects.get().amount_nano == 9_000
    assert usage_post(tenant="acme", start=JANUARY, end=MARCH) == 0


def test_a_round_over_many_tenants_reads_the_prices_once(priced: Tenant) -> None:
    for tenant in ("aaa", "bbb", "ccc"):
        UsageRollup.objects.create(
            day=JANUARY,
            tenant=tenant,
            project="p",
            key_id="k",
            adapter="",
            alias="",
            base_model="tiny",
            backend="worker",
            status="ok",
            requests=1,
            prompt_tokens=5,
            cached_tokens=0,
            completion_tokens=0,
        )
    assert usage_post_all(start=JANUARY, end=MARCH) == 3
    with patch.object(PriceList, "load", side_effect=PriceList.load) as load:
        assert usage_post_all(start=JANUARY, end=MARCH) == 0
    assert load.call_count == 1


def test_books_that_differ_from_usage_are_told_at_night(
    priced: Tenant, caplog: pytest.LogCaptureFixture
) -> None:
    day = dt.datetime.now(dt.UTC).date() - dt.timedelta(days=3)
    use(day.isoformat(), 1_000)
    nightly()
    assert books_check(start=day, end=day) == []
    # The mark says that the day is posted: the round skips it, and the check must find the difference.
    UsageRollup.objects.update(prompt_tokens=1_001)
    assert PostedDay.objects.filter(day=day).exists()
    with caplog.at_level(logging.ERROR):
        nightly()
    assert f"ledger of acme on {day}: 1000000 booked, 1001000 expected" in caplog.text
