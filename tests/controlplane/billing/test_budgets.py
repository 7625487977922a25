"""Baselines of budgets and rates, as the database has them, in Redis and in the route table."""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import redis
from django.db import connection

from contracts.limits import MAX_AMOUNT, PREPAID, Limit, LimitsRoute, RateRoute, budget_key
from contracts.redis_names import USAGE_STREAM
from controlplane.billing.budgets import LAG_MS, budgets_publish
from controlplane.billing.invoices.services import invoice_draft, invoice_finalize
from controlplane.billing.ledger.credits import credit_grant, payment_record
from controlplane.billing.ledger.posting import usage_post
from controlplane.billing.ledger.selectors import balance
from controlplane.billing.models import JournalEntry, PrepaidMark, PriceBook
from controlplane.billing.rates import rates_publish
from controlplane.billing.services import hosting_price_set, price_book_create, price_set
from controlplane.errors import InvalidInputError
from controlplane.metering.models import HostingHour, UsageRollup
from controlplane.routes.selectors import route_table
from controlplane.tenants.limits.services import key_limits_set, prepaid_stop_set, tenant_limits_set
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create
from tests.controlplane.billing.parties import parties_state

pytestmark = pytest.mark.django_db
NOW = dt.datetime(2026, 11, 30, 23, 59, tzinfo=dt.UTC)


def use(day: str, *, key: str = "k", tenant: str = "acme", base: str = "tiny", prompt: int = 10) -> None:
    UsageRollup.objects.create(
        day=dt.date.fromisoformat(day),
        tenant=tenant,
        project="p",
        key_id=key,
        adapter="",
        alias="",
        base_model=base,
        backend="worker",
        status="ok",
        requests=1,
        prompt_tokens=prompt,
        cached_tokens=4,
        completion_tokens=5,
    )


@pytest.fixture
def prices(db: None) -> None:
    book = price_book_create(name="standard")
    price_set(
        book=book,
        base_model="tiny",
        effective_from=dt.date(2026, 1, 1),
        input_nano=100,
        cached_input_nano=10,
        output_nano=1000,
    )


PRICED = 6 * 100 + 4 * 10 + 5 * 1000


def stored(redis_url: str, scope: str, period: str) -> dict[bytes, bytes]:
    with redis.Redis.from_url(redis_url, decode_responses=False) as client:
        return cast(dict[bytes, bytes], client.hgetall(budget_key(scope, period)))


def test_a_period_is_summed_at_price_per_scope(tenant: Tenant, prices: None, redis_url: str) -> None:
    key, _ = api_key_create(tenant=tenant, name="k", scopes=["inference"])
    tenant_limits_set(tenant=tenant, budget_nano=10**9)
    key_limits_set(api_key=key, budget_nano=10**6, budget_period="day")
    for day in ("2026-10-31", "2026-11-01", "2026-11-30", "2026-12-01"):
        use(day)
    use("2026-11-30", key=key.pk)
    use("2026-11-30", tenant="globex", key=key.pk)
    use("2026-11-30", base="unpriced")
    assert budgets_publish(redis_url=redis_url, now=NOW) == 4
    assert int(stored(redis_url, "tenant:acme", "2026-11")[b"base"]) == 3 * PRICED
    assert int(stored(redis_url, "tenant:acme", "2026-12")[b"base"]) == PRICED
    assert int(stored(redis_url, f"key:{key.pk}", "2026-11-30")[b"base"]) == PRICED
    assert int(stored(redis_url, f"key:{key.pk}", "2026-12-01")[b"base"]) == 0


def test_the_cut_waits_for_ingestion_and_never_goes_back(
    tenant: Tenant, prices: None, redis_url: str
) -> None:
    tenant_limits_set(tenant=tenant, budget_nano=10**9)
    with redis.Redis.from_url(redis_url) as client:
        now = client.time()[0] * 1000
        client.xadd(USAGE_STREAM, {"event": "x"}, id=f"{now - 60_000}-0")
        budgets_publish(redis_url=redis_url, now=NOW)
        assert int(stored(redis_url, "tenant:acme", "2026-11")[b"cut"]) == now - 60_000 - LAG_MS
        client.delete(USAGE_STREAM)
        use("2026-11-01")
        budgets_publish(redis_url=redis_url, now=NOW)
        newer = stored(redis_url, "tenant:acme", "2026-11")
        assert int(newer[b"base"]) == PRICED
        assert 0 <= int(newer[b"cut"]) - (now - LAG_MS) < 5000
        # A slower task of the round before comes too late.
        client.xadd(USAGE_STREAM, {"event": "x"}, id=f"{now - 60_000}-0")
        use("2026-11-02")
        budgets_publish(redis_url=redis_url, now=NOW)
        assert stored(redis_url, "tenant:acme", "2026-11") == newer


def test_the_alert_goes_off_once_a_period(
    tenant: Tenant, prices: None, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    tenant_limits_set(tenant=tenant, budget_nano=2 * PRICED, budget_alert_percent=50)
    with caplog.at_level(logging.WARNING):
        budgets_publish(redis_url=redis_url, now=NOW)
        assert "has spent" not in caplog.text
        use("2026-11-02")
        for _ in range(2):
            budgets_publish(redis_url=redis_url, now=NOW)
    assert caplog.text.count("tenant:acme has spent") == 1


def test_time_of_hosting_counts_in_a_tenants_budget_as_it_is_booked(
    tenant: Tenant, prices: None, redis_url: str
) -> None:
    key, _ = api_key_create(tenant=tenant, name="k", scopes=["inference"])
    tenant_limits_set(tenant=tenant, budget_nano=10**9)
    key_limits_set(api_key=key, budget_nano=10**6)
    book, first = PriceBook.objects.get(), dt.date(2026, 1, 1)
    hosting_price_set(book=book, kind="adapter_hour", effective_from=first, nano=700)
    hosting_price_set(book=book, kind="storage_gb_hour", effective_from=first, nano=3)
    for day in ("2026-10-31", "2026-11-30"):
        at: dict[str, Any] = {"day": dt.date.fromisoformat(day), "hour": 1, "tenant": "acme", "adapter": "a"}
        HostingHour.objects.create(kind="adapter", tier="placed", quantity_seconds=1800, **at)
        HostingHour.objects.create(kind="storage", quantity_seconds=3600 * 10**9, **at)
        use(day, key=key.pk)
    usage_post(tenant="acme", start=first, end=NOW.date())
    budgets_publish(redis_url=redis_url, now=NOW)
    assert int(stored(redis_url, "tenant:acme", "2026-11")[b"base"]) == PRICED + 350 + 3
    assert int(stored(redis_url, f"key:{key.pk}", "2026-11")[b"base"]) == PRICED, "of no key"


def prepaid_left(redis_url: str) -> int:
    """Return acme's prepaid balance as gateways read it."""
    budgets_publish(redis_url=redis_url, now=NOW)
    return MAX_AMOUNT - int(stored(redis_url, "tenant:acme", PREPAID)[b"base"])


@contextlib.contextmanager
def after_its_reads(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> Iterator[None]:
    """Has `act` happen once the first round within has read whose limits there are, before it writes."""
    connect, acts = redis.Redis.from_url, [act]

    def connect_later(*args: Any, **options: Any) -> redis.Redis:
        if acts:
            acts.pop()()
        return connect(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(redis.Redis, "from_url", connect_later)
        yield
    assert not acts


def test_what_is_prepaid_is_used_up_by_usage_and_restored_by_a_top_up(
    tenant: Tenant, prices: None, redis_url: str
) -> None:
    prepaid_stop_set(tenant=tenant, stops=True)
    assert route_table().limits == {"tenant:acme": LimitsRoute((Limit("prepaid", MAX_AMOUNT),))}
    assert prepaid_left(redis_url) == 0
    payment_record(tenant=tenant, amount_nano=2 * PRICED)
    credit_grant(tenant=tenant, amount_nano=PRICED, starts=NOW.date(), expires_on=NOW.date())
    credit_grant(tenant=tenant, amount_nano=10**9, starts=NOW.date() + dt.timedelta(days=1))
    assert prepaid_left(redis_url) == 3 * PRICED, "a credit of tomorrow pays nothing today"
    use("2026-11-29")
    assert prepaid_left(redis_url) == 2 * PRICED, "what is not booked yet counts"
    usage_post(tenant="acme", start=dt.date(2026, 11, 1), end=NOW.date())
    assert prepaid_left(redis_url) == 2 * PRICED, "and what is booked counts once"
    use("2026-11-30", key="other")
    use("2026-11-28", key="other")
    use("2026-11-28", key="more")
    assert prepaid_left(redis_url) == 0, "one too many: shown as nothing left"
    payment_record(tenant=tenant, amount_nano=5 * PRICED)
    assert prepaid_left(redis_url) == 4 * PRICED, "and made up for by the top-up"
    prepaid_stop_set(tenant=tenant, stops=False)
    assert route_table().limits == {}
    assert stored(redis_url, "tenant:acme", PREPAID)
    assert budgets_publish(redis_url=redis_url, now=NOW) == 0
    assert not stored(redis_url, "tenant:acme", PREPAID), "a later limit begins with what is left then"


def test_a_round_that_is_slow_takes_away_no_limit_that_is_set_again(
    tenant: Tenant, prices: None, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    payment_record(tenant=tenant, amount_nano=7)
    prepaid_stop_set(tenant=tenant, stops=True)
    assert prepaid_left(redis_url) == 7
    prepaid_stop_set(tenant=tenant, stops=False)

    def set_again() -> None:
        prepaid_stop_set(tenant=tenant, stops=True)
        budgets_publish(redis_url=redis_url, now=NOW, tenant="acme")

    with after_its_reads(monkeypatch, set_again):
        budgets_publish(redis_url=redis_url, now=NOW)
    assert stored(redis_url, "tenant:acme", PREPAID), "with it, calls go on being counted"


def test_a_round_that_is_slow_brings_back_no_limit_that_is_lifted(
    tenant: Tenant, prices: None, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    payment_record(tenant=tenant, amount_nano=7)
    prepaid_stop_set(tenant=tenant, stops=True)

    def lift() -> None:
        prepaid_stop_set(tenant=tenant, stops=False)
        budgets_publish(redis_url=redis_url, now=NOW, tenant="acme")

    with after_its_reads(monkeypatch, lift):
        budgets_publish(redis_url=redis_url, now=NOW)
    assert not stored(redis_url, "tenant:acme", PREPAID)
    assert not PrepaidMark.objects.exists()


def test_a_lift_is_made_good_where_its_task_was_lost(tenant: Tenant, prices: None, redis_url: str) -> None:
    payment_record(tenant=tenant, amount_nano=7)
    prepaid_stop_set(tenant=tenant, stops=True)
    assert prepaid_left(redis_url) == 7
    tenant.delete()
    budgets_publish(redis_url=redis_url, now=NOW)
    assert not stored(redis_url, "tenant:acme", PREPAID)
    assert not PrepaidMark.objects.exists()


def test_a_credit_that_has_ended_pays_what_was_used_on_its_days(
    tenant: Tenant, prices: None, redis_url: str
) -> None:
    yesterday = NOW.date() - dt.timedelta(days=1)
    prepaid_stop_set(tenant=tenant, stops=True)
    credit_grant(tenant=tenant, amount_nano=PRICED, starts=dt.date(2026, 11, 1), expires_on=yesterday)
    payment_record(tenant=tenant, amount_nano=7)
    use("2026-11-29")
    usage_post(tenant="acme", start=dt.date(2026, 11, 1), end=NOW.date())
    assert prepaid_left(redis_url) == 7, "no invoice yet, and yet the credit has paid"
    assert balance(tenant="acme", today=NOW.date()).available == 7
    use("2026-11-29", key="other")
    usage_post(tenant="acme", start=dt.date(2026, 11, 1), end=NOW.date())
    assert balance(tenant="acme", today=NOW.date()).available == 7 - PRICED, "no more than it was"
    assert balance(tenant="acme", today=yesterday).available == 7 - PRICED, "nor on its last day"
    drafted = invoice_draft(tenant="acme", month=dt.date(2026, 11, 1))
    parties_state()
    invoice_finalize(invoice=drafted, today=dt.date(2026, 12, 1))
    after = balance(tenant="acme", today=NOW.date())
    assert after.available - after.receivable == 7 - PRICED, "the invoice draws what was counted"


def test_books_that_cannot_be_read_hold_up_no_other_tenant(
    tenant: Tenant, other_tenant: Tenant, prices: None, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    # An account that no release knows: the table's own check would refuse it.
    postgresql = connection.vendor == "postgresql"
    with connection.cursor() as cursor:
        if postgresql:
            cursor.execute("ALTER TABLE billing_journalentry DROP CONSTRAINT journal_known_accounts")
        else:
            cursor.execute("PRAGMA ignore_check_constraints = ON")
    for whose in (tenant, other_tenant):
        prepaid_stop_set(tenant=whose, stops=True)
        payment_record(tenant=whose, amount_nano=7)
    entry = JournalEntry.objects.get(tenant="acme")
    entry.pk, entry.number, entry.credit = None, 99, "new"
    entry.save(force_insert=True)
    if not postgresql:
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA ignore_check_constraints = OFF")
    assert budgets_publish(redis_url=redis_url, now=NOW) == 1
    assert "tenant:acme: baseline not written" in caplog.text
    assert int(stored(redis_url, f"tenant:{other_tenant.pk}", PREPAID)[b"base"]) == MAX_AMOUNT - 7
    payment_record(tenant=other_tenant, amount_nano=1)
    caplog.clear()
    assert budgets_publish(redis_url=redis_url, now=NOW, tenant=other_tenant.pk) == 1
    assert "tenant:acme" not in caplog.text, "one that pays is looked at alone"


def test_a_finalized_invoice_leaves_what_is_left(tenant: Tenant, prices: None, redis_url: str) -> None:
    prepaid_stop_set(tenant=tenant, stops=True)
    payment_record(tenant=tenant, amount_nano=10**9)
    use("2026-10-31")
    usage_post(tenant="acme", start=dt.date(2026, 10, 1), end=dt.date(2026, 10, 31))
    before = prepaid_left(redis_url)
    assert before == 10**9 - PRICED
    parties_state()
    invoice_finalize(invoice=invoice_draft(tenant="acme", month=dt.date(2026, 10, 1)))
    assert prepaid_left(redis_url) == before


def test_only_a_tenant_stops_at_zero(tenant: Tenant) -> None:
    key, _ = api_key_create(tenant=tenant, name="k", scopes=["inference"])
    with pytest.raises(InvalidInputError, match="on the tenant"):
        key_limits_set(api_key=key, prepaid_stop=True)
    tenant_limits_set(tenant=tenant, requests_per_minute=7)
    assert prepaid_stop_set(tenant=tenant, stops=True).requests_per_minute == 7


def test_rates_follow_the_default_book_and_the_day(prices: None) -> None:
    assert route_table().rates == {"tiny": RateRoute(100, 10, 1000)}
    book = price_book_create(name="other")
    later = dt.date.today() + dt.timedelta(days=3)
    own: dict[str, Any] = {"input_nano": 1, "cached_input_nano": 1, "output_nano": 1}
    price_set(book=book, base_model="tiny", effective_from=dt.date(2026, 1, 1), **own)
    assert route_table().rates == {"tiny": RateRoute(100, 10, 1000)}, "not the default book"
    standard = price_book_create(name="third", is_default=True)
    assert route_table().rates == {}
    price_set(book=standard, base_model="tiny", adapter="acme/bot", effective_from=dt.date(2026, 1, 1), **own)
    price_set(book=standard, base_model="tiny", effective_from=later, **own)
    assert route_table().rates == {"tiny/acme/bot": RateRoute(1, 1, 1)}
    assert rates_publish(today=later) == 1
    assert set(route_table().rates) == {"tiny", "tiny/acme/bot"}
    assert rates_publish(today=later) == 0


def test_a_price_for_one_kind_of_backend_alone_lets_nobody_through(prices: None) -> None:
    amounts: dict[str, Any] = {"cached_input_nano": 0, "output_nano": 0}
    book, first = PriceBook.objects.get(), dt.date(2026, 1, 1)
    price_set(book=book, base_model="big", backend="vllm", effective_from=first, input_nano=5, **amounts)
    price_set(book=book, base_model="tiny", backend="vllm", effective_from=first, input_nano=500, **amounts)
    assert route_table().rates == {"tiny": RateRoute(500, 10, 1000)}, "elsewhere, big would cost nothing"
    price_set(book=book, base_model="big", effective_from=first, input_nano=3, **amounts)
    assert route_table().rates["big"] == RateRoute(5, 0, 0)
