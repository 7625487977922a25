"""Notices at 50, 80 and 100 percent of a budget are sent once per period, by webhook and by mail."""

from __future__ import annotations

import datetime as dt

import pytest
from django.core import mail

from controlplane.billing.budget_notices import budget_notice_send, budget_notices_due
from controlplane.billing.budgets import budgets_publish
from controlplane.billing.models import BudgetNotice
from controlplane.platform.mail_server import MailServer
from controlplane.tenants.limits.services import tenant_limits_set
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Role
from controlplane.tenants.services import user_create
from controlplane.webhooks.models import WebhookEvent
from controlplane.webhooks.services import endpoint_create
from tests.controlplane.billing.test_budgets import NOW, PRICED, prices, use

__all__ = ["prices"]  # a fixture

pytestmark = pytest.mark.django_db


@pytest.fixture
def people(tenant: Tenant) -> Tenant:
    for role in Role:
        user_create(email=f"{role}@acme.test", password="long-enough-7", tenant=tenant, role=role)
    endpoint_create(tenant=tenant, url="https://hooks.example/", events=["budget.threshold"])
    return tenant


def publish(redis_url: str, now: dt.datetime = NOW) -> list[int]:
    """Publish the budgets; return the percents of the new `budget.threshold` webhooks, sorted."""
    before = set(WebhookEvent.objects.values_list("pk", flat=True))
    budgets_publish(redis_url=redis_url, now=now)
    told = WebhookEvent.objects.exclude(pk__in=before).filter(type="budget.threshold")
    return sorted(event.data["percent"] for event in told)


def written() -> list[tuple[str, str]]:
    """(recipient, subject) of what goes out when the periodic task runs."""
    mail.outbox.clear()
    with MailServer() as server:
        for notice_id in budget_notices_due():
            assert budget_notice_send(notice_id=notice_id, server=server)
    return sorted((message.to[0], str(message.subject)) for message in mail.outbox)


def test_each_threshold_is_told_once_a_period(people: Tenant, prices: None, redis_url: str) -> None:
    tenant_limits_set(tenant=people, budget_nano=2 * PRICED)
    assert publish(redis_url) == []
    use("2026-11-02")
    assert publish(redis_url) == [50]
    assert publish(redis_url) == []
    told = [f"{role}@acme.test" for role in ("admin", "billing", "owner")]
    assert written() == [(email, "Acme has spent 50 % of its budget") for email in told]
    assert "2026-11" in mail.outbox[0].body
    assert written() == []
    use("2026-11-03")
    assert publish(redis_url) == [80, 100], "each is an event"
    assert [subject for _, subject in written()] == ["Acme has spent 100 % of its budget"] * 3
    use("2026-12-01")
    december = dt.datetime(2026, 12, 1, 12, tzinfo=dt.UTC)
    assert publish(redis_url, december) == [50]


def test_another_budget_is_told_of_anew(people: Tenant, prices: None, redis_url: str) -> None:
    tenant_limits_set(tenant=people, budget_nano=PRICED)
    use("2026-11-02")
    assert publish(redis_url) == [50, 80, 100]
    tenant_limits_set(tenant=people, budget_nano=2 * PRICED)
    assert publish(redis_url) == [50]
    tenant_limits_set(tenant=people, budget_nano=0)
    assert publish(redis_url) == [], "a budget of nothing is no share of anything"


def test_who_has_been_written_to_is_not_written_to_again(
    people: Tenant, prices: None, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant_limits_set(tenant=people, budget_nano=2 * PRICED)
    use("2026-11-02")
    publish(redis_url)
    notice = BudgetNotice.objects.get()
    first = next(iter(people.memberships.filter(role=Role.OWNER).values_list("user_id", flat=True)))
    BudgetNotice.objects.filter(pk=notice.pk).update(notified=[first])
    assert [email for email, _ in written()] == ["admin@acme.test", "billing@acme.test"]
