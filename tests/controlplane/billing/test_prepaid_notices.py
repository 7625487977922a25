"""A low prepaid balance is announced once per top-up, by webhook and by mail."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.core import mail

from controlplane.billing import budgets
from controlplane.billing.budget_notices import budget_notice_send, budget_notices_due
from controlplane.billing.budgets import budgets_publish
from controlplane.billing.ledger.credits import credit_grant, entry_reverse, payment_record
from controlplane.billing.models import BudgetNotice, PrepaidMark
from controlplane.billing.prepaid_notices import prepaid_seen, prepaid_tell
from controlplane.billing.selectors import prepaid_left_nano
from controlplane.platform.mail_server import MailServer
from controlplane.tenants.limits.services import prepaid_stop_set
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Role
from controlplane.tenants.services import user_create
from controlplane.webhooks.models import WebhookEvent
from controlplane.webhooks.services import endpoint_create
from tests.controlplane.billing.test_budgets import NOW, PRICED, prices, use

__all__ = ["prices"]  # a fixture
pytestmark = pytest.mark.django_db
TODAY = NOW.date()


def notices_sent() -> list[tuple[int, int]]:
    """Return (percent, remaining amount) of each webhook, in order."""
    events = WebhookEvent.objects.filter(type="prepaid.threshold").order_by("created_at", "pk")
    return sorted((event.data["percent"], event.data["left_nano"]) for event in events)


def test_owners_admins_and_billing_are_warned_before_it_ends_and_when_it_does(
    tenant: Tenant, prices: None, redis_url: str
) -> None:
    for role in Role:
        user_create(email=f"{role}@acme.test", password="long-enough-7", tenant=tenant, role=role)
    endpoint_create(tenant=tenant, url="https://hooks.example/", events=["prepaid.threshold"])
    prepaid_stop_set(tenant=tenant, stops=True)
    budgets_publish(redis_url=redis_url, now=NOW)
    assert not PrepaidMark.objects.exists(), "who never paid is not warned"
    payment_record(tenant=tenant, amount_nano=5 * PRICED)
    # As the task does that a payment enqueues.
    budgets_publish(redis_url=redis_url, now=NOW)
    for day in ("2026-11-27", "2026-11-28", "2026-11-29"):
        use(day)
        budgets_publish(redis_url=redis_url, now=NOW)
    assert notices_sent() == []
    use("2026-11-30")
    for _ in range(2):
        budgets_publish(redis_url=redis_url, now=NOW)
    assert notices_sent() == [(80, PRICED)]
    use("2026-11-30", key="other")
    budgets_publish(redis_url=redis_url, now=NOW)
    assert notices_sent() == [(80, PRICED), (100, 0)]
    mail.outbox.clear()
    with MailServer() as server:
        for notice_id in budget_notices_due():
            assert budget_notice_send(notice_id=notice_id, server=server)
    assert sorted({message.to[0] for message in mail.outbox}) == [
        f"{role}@acme.test" for role in ("admin", "billing", "owner")
    ]
    first, last = mail.outbox[0], mail.outbox[-1]
    assert (first.subject, last.subject) == (
        "Prepaid balance of Acme is low",
        "Prepaid balance of Acme is used up",
    )
    assert "/t/acme/billing/" in first.body
    assert "has $0.00000564 left of the $0.0000282" in first.body
    assert "has $0.00 left" in last.body
    payment_record(tenant=tenant, amount_nano=10 * PRICED)
    budgets_publish(redis_url=redis_url, now=NOW)
    mark = PrepaidMark.objects.get()
    assert (mark.peak_nano, mark.told) == (10 * PRICED, 0)


def tell(*left: int, today: dt.date = TODAY) -> list[int]:
    return [prepaid_tell(seen=prepaid_seen(tenant="acme", today=today), left_nano=nano) for nano in left]


def marked() -> tuple[int, int]:
    """Return the mark's base amount and the highest percent announced."""
    return PrepaidMark.objects.values_list("peak_nano", "told").get()


def test_what_is_counted_twice_for_a_moment_turns_one_warning_into_no_two(tenant: Tenant) -> None:
    payment_record(tenant=tenant, amount_nano=100)
    assert tell(100, 21, 20, 22, 20, 39, 41, 20) == [0, 0, 1, 0, 0, 0, 0, 0]
    assert tell(0, 1, 0, -5, 50, 0) == [1, 0, 0, 0, 0, 0], "nobody topped up"
    assert tell(0, 1, 0, today=TODAY + dt.timedelta(days=1)) == [0, 0, 0], "on no day"
    assert BudgetNotice.objects.count() == 2


def test_each_top_up_is_told_of_anew_however_small(tenant: Tenant) -> None:
    payment_record(tenant=tenant, amount_nano=1000)
    assert tell(1000, 100, 0) == [0, 1, 1]
    payment_record(tenant=tenant, amount_nano=350)
    assert tell(350, 70, 0) == [0, 1, 1]
    payment_record(tenant=tenant, amount_nano=350)
    assert tell(350, 70, 0) == [0, 1, 1], "the same amount on the same day"
    credit_grant(tenant=tenant, amount_nano=30)
    assert tell(-20, -20, -30) == [0, 1, 0], "one that does not make up for what was used"
    assert BudgetNotice.objects.get(budget_nano=0).spent_nano == 20
    undone = payment_record(tenant=tenant, amount_nano=100)
    assert tell(70) == [0]
    entry_reverse(entry=undone, memo="bounced")
    assert tell(-30) == [1], "what is taken back is no top-up"


def test_percents_are_of_what_was_there_after_the_last_top_up(tenant: Tenant) -> None:
    payment_record(tenant=tenant, amount_nano=100)
    assert tell(100, 25) == [0, 0]
    payment_record(tenant=tenant, amount_nano=50)
    assert tell(75, 20, 15) == [0, 0, 1]
    notice = BudgetNotice.objects.get()
    assert (notice.budget_nano, notice.spent_nano) == (75, 60)


def test_a_credit_is_a_top_up_from_its_first_day_on(tenant: Tenant) -> None:
    tomorrow = TODAY + dt.timedelta(days=1)
    payment_record(tenant=tenant, amount_nano=100)
    credit_grant(tenant=tenant, amount_nano=80, starts=tomorrow)
    payment_record(tenant=tenant, amount_nano=1)
    assert tell(101, 20) == [0, 1]
    assert tell(100, 20, today=tomorrow) == [0, 1]
    # A task that is slower across midnight.
    assert tell(20) == [0]
    assert marked() == (100, 80)


def test_what_was_left_before_a_top_up_is_not_held_against_the_mark_after_it(tenant: Tenant) -> None:
    payment_record(tenant=tenant, amount_nano=20)
    assert tell(20) == [0]
    slow = prepaid_seen(tenant="acme", today=TODAY)
    payment_record(tenant=tenant, amount_nano=80)
    assert tell(100) == [0]
    assert prepaid_tell(seen=slow, left_nano=3) == 0, "of 20, of which none is spoken any more"
    assert prepaid_tell(seen=slow, left_nano=90) == 0
    assert marked() == (100, 0)
    assert tell(20) == [1], "the real one"


def test_a_round_judges_by_the_mark_that_it_read_before_what_is_left(
    tenant: Tenant, prices: None, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    payment_record(tenant=tenant, amount_nano=20)
    prepaid_stop_set(tenant=tenant, stops=True)
    budgets_publish(redis_url=redis_url, now=NOW)

    def read_slowly(**of: Any) -> int:
        left = prepaid_left_nano(**of)
        monkeypatch.setattr(budgets, "prepaid_left_nano", prepaid_left_nano)
        payment_record(tenant=tenant, amount_nano=80)
        budgets_publish(redis_url=redis_url, now=NOW, tenant="acme")
        return left

    monkeypatch.setattr(budgets, "prepaid_left_nano", read_slowly)
    budgets_publish(redis_url=redis_url, now=NOW)
    assert marked() == (100, 0)
    assert not BudgetNotice.objects.exists(), "20 of 100 were left at no time"


def test_two_that_first_see_a_tenant_make_one_mark(tenant: Tenant) -> None:
    slow = prepaid_seen(tenant="acme", today=TODAY)
    payment_record(tenant=tenant, amount_nano=100)
    assert tell(100) == [0]
    assert prepaid_tell(seen=slow, left_nano=7) == 0
    assert marked() == (100, 0)


def test_a_mark_of_the_release_before_goes_on(tenant: Tenant) -> None:
    payment_record(tenant=tenant, amount_nano=100)
    PrepaidMark.objects.create(tenant="acme", peak_nano=100, told=80)
    assert tell(20) == [0]
    assert marked() == (100, 80), "nothing told is told again"
    assert tell(10, 0) == [0, 1]


def test_who_lifts_the_stop_and_sets_it_again_begins_with_what_is_left_then(
    tenant: Tenant, prices: None, redis_url: str
) -> None:
    payment_record(tenant=tenant, amount_nano=5 * PRICED)
    prepaid_stop_set(tenant=tenant, stops=True)
    budgets_publish(redis_url=redis_url, now=NOW)
    assert marked() == (5 * PRICED, 0)
    prepaid_stop_set(tenant=tenant, stops=False)
    # As the task does that the lift enqueues.
    budgets_publish(redis_url=redis_url, now=NOW, tenant="acme")
    assert not PrepaidMark.objects.exists()
    for day in ("2026-11-27", "2026-11-28", "2026-11-29", "2026-11-30"):
        use(day)
    prepaid_stop_set(tenant=tenant, stops=True)
    for _ in range(2):
        budgets_publish(redis_url=redis_url, now=NOW)
    assert marked() == (PRICED, 0)
    assert not BudgetNotice.objects.exists()
