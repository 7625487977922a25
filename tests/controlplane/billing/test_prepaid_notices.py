"""Prepaid money that runs low is told of once a top-up, by webhook and by mail."""

from __future__ import annotations

import pytest
from django.core import mail

from controlplane.billing.budget_notices import budget_notice_send, budget_notices_due
from controlplane.billing.budgets import budgets_publish
from controlplane.billing.ledger.credits import payment_record
from controlplane.billing.models import BudgetNotice, PrepaidMark
from controlplane.billing.prepaid_notices import prepaid_tell
from controlplane.limits.services import prepaid_stop_set
from controlplane.mail_server import MailServer
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Role
from controlplane.tenants.services import user_create
from controlplane.webhooks.models import WebhookEvent
from controlplane.webhooks.services import endpoint_create
from tests.controlplane.billing.test_budgets import NOW, PRICED, prices, use

__all__ = ["prices"]  # a fixture
pytestmark = pytest.mark.django_db


def told() -> list[tuple[int, int]]:
    """(percent, what was left) of what webhooks were told, in order."""
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
    assert told() == []
    use("2026-11-30")
    for _ in range(2):
        budgets_publish(redis_url=redis_url, now=NOW)
    assert told() == [(80, PRICED)]
    use("2026-11-30", key="other")
    budgets_publish(redis_url=redis_url, now=NOW)
    assert told() == [(80, PRICED), (100, 0)]
    mail.outbox.clear()
    with MailServer() as server:
        for notice_id in budget_notices_due():
            assert budget_notice_send(notice_id=notice_id, server=server)
    assert sorted({message.to[0] for message in mail.outbox}) == [
        f"{role}@acme.test" for role in ("admin", "billing", "owner")
    ]
    first, last = mail.outbox[0], mail.outbox[-1]
    assert (first.subject, last.subject) == (
        "What Acme paid in advance runs low", "What Acme paid in advance is used up"
    )  # fmt: skip
    assert "/t/acme/billing/" in first.body
    assert "has 0.00 USD left" in first.body
    payment_record(tenant=tenant, amount_nano=10 * PRICED)
    budgets_publish(redis_url=redis_url, now=NOW)
    mark = PrepaidMark.objects.get()
    assert (mark.peak_nano, mark.told) == (10 * PRICED, 0)


def test_what_is_counted_twice_for_a_moment_turns_one_warning_into_no_two(tenant: Tenant) -> None:
    def tell(left: int, day: int = 0) -> int:
        return prepaid_tell(tenant="acme", left_nano=left, today=NOW.date().replace(day=1 + day))

    assert [tell(left) for left in (100, 21, 20, 22, 20, 39, 20)] == [0, 0, 1, 0, 0, 0, 0]
    assert [tell(left) for left in (0, 1, 0, -5, 1, 0)] == [1, 0, 0, 0, 0, 0], "each once a day"
    assert BudgetNotice.objects.count() == 2
    # Topped up to less than before: what is there now is what percents are of.
    assert [tell(left) for left in (50, 11, 10)] == [0, 0, 1]
    assert BudgetNotice.objects.get(budget_nano=50).percent == 80
    assert [tell(left, 1) for left in (50, 10)] == [0, 1], "the same amount on another day"
