"""50, 80 and 100 percent of a budget: told once a period, by webhook and by mail."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Iterator
from typing import Final

from django.conf import settings
from django.core.mail import EmailMessage
from django.db import transaction
from django.db.models import F
from django.urls import reverse
from django.utils import timezone

from controlplane.billing.currency import money, money_rounded
from controlplane.billing.models import BudgetNotice
from controlplane.billing.price_list import PriceList
from controlplane.platform.mail_server import MailServer, Outcome
from controlplane.platform.mail_texts import mail_texts
from controlplane.platform.queue import enqueue
from controlplane.tenants.limits.models import ScopeLimits
from controlplane.tenants.models import Membership, Tenant
from controlplane.tenants.roles import GRANTS, Permission
from controlplane.webhooks.outbox import event_emit

logger = logging.getLogger(__name__)

THRESHOLDS: Final = (50, 80, 100)
"""Percent of a budget."""
NOTIFY_TASK: Final = "billing.notify_budget"
RETRY_AFTER: Final = dt.timedelta(minutes=2)
"""When an attempt counts as failed; it doubles with each one."""
ATTEMPTS: Final = 12
"""In nearly three days."""
_TOLD: Final = [role for role, permissions in GRANTS.items() if Permission.BILLING_READ in permissions]
"""Roles of those who are written to: owners, admins, billing."""


def thresholds_tell(*, limits: ScopeLimits, period: str, spent_nano: int) -> int:
    """Tells of each threshold that `spent_nano` has reached in `period` and nobody was told of; how many.

    Of several that are reached at once each is an event; by mail the highest alone is told.
    """
    if not (budget := limits.budget_nano):
        return 0
    reached = [percent for percent in THRESHOLDS if spent_nano * 100 >= budget * percent]
    if not reached:
        return 0
    notices = BudgetNotice.objects.filter(scope=limits.scope, period=period, budget_nano=budget)
    known = set(notices.values_list("percent", flat=True))
    new = [percent for percent in reached if percent not in known]
    return sum(_tell(limits, period, budget, spent_nano, percent, mail=percent == new[-1]) for percent in new)


@transaction.atomic
def _tell(
    limits: ScopeLimits, period: str, budget_nano: int, spent_nano: int, percent: int, *, mail: bool
) -> bool:
    # The unique constraint lets one of two tasks at once make it, and that one tells.
    notice, made = BudgetNotice.objects.get_or_create(
        scope=limits.scope, period=period, percent=percent, budget_nano=budget_nano,
        defaults={
            "tenant": limits.tenant_id, "spent_nano": spent_nano,
            "notify_at": timezone.now() if mail else None,
        },
    )  # fmt: skip
    if not made:
        return False
    logger.warning("budget of %s: %d percent is spent in %s", limits.scope, percent, period)
    told = {
        "scope": limits.scope, "period": period, "percent": percent, "spent_nano": spent_nano,
        "budget_nano": budget_nano,
    }  # fmt: skip
    event_emit(tenant=limits.tenant_id, type="budget.threshold", data=told)
    if mail:
        enqueue(NOTIFY_TASK, notice_id=notice.pk)
    return True


def budget_notice_send(*, notice_id: int, server: MailServer) -> bool:
    """Writes to each of the tenant's owners, admins and billing members, at least once; True when nobody is
    left now. Who has been written to is noted after each message; the periodic task tries the others again.

    Raises:
        MailServerAwayError: nothing can be sent at present.
    """
    now = timezone.now()
    mine = BudgetNotice.objects.filter(pk=notice_id, notify_at__lte=now)
    if not mine.update(notify_at=now + RETRY_AFTER, notify_attempts=F("notify_attempts") + 1):
        return False
    notice = BudgetNotice.objects.get(pk=notice_id)
    this = BudgetNotice.objects.filter(pk=notice_id)
    last = notice.notify_attempts >= ATTEMPTS
    this.update(notify_at=None if last else now + RETRY_AFTER * 2 ** (notice.notify_attempts - 1))
    notified, left = list(notice.notified or []), 0
    for user_id, message in _messages(notice, notified):
        if server.send(message) is Outcome.LATER:
            left += 1
            continue
        notified.append(user_id)
        this.update(notified=notified)
    if left:
        logger.warning("%d people are left to write to about %s", left, notice)
        return False
    this.update(notify_at=None)
    return True


def budget_notices_due() -> list[int]:
    """Ids of the notices that somebody is to be written to about, oldest first."""
    due = BudgetNotice.objects.filter(notify_at__lte=timezone.now())
    return list(due.order_by("notify_at").values_list("pk", flat=True)[:1000])


def _messages(notice: BudgetNotice, notified: list[int]) -> Iterator[tuple[int, EmailMessage]]:
    """By user id. One message each: nobody is shown the others' addresses."""
    tenant = Tenant.objects.filter(pk=notice.tenant).first()
    if tenant is None:
        return
    # What is prepaid has no period and no key; see `prepaid_notices`.
    prepaid = notice.scope.startswith("prepaid:")
    page = reverse("console:billing" if prepaid else "console:usage", args=(tenant.pk,))
    name = "prepaid" if prepaid else "budget"
    currency = PriceList.load().currency()
    context = {
        "notice": notice,
        "tenant": tenant,
        "spent": money_rounded(notice.spent_nano, currency),
        "left": money_rounded(max(0, notice.budget_nano - notice.spent_nano), currency),
        "budget": money(notice.budget_nano, currency),
        "key": notice.scope.partition(":")[2] if notice.scope.startswith("key:") else "",
        "page": f"{settings.GRAFTWORK.web_url}{page}",
    }
    subject, body = mail_texts(f"billing/{name}", context)
    members = Membership.objects.filter(tenant=tenant, role__in=_TOLD, user__is_active=True)
    people = members.exclude(user__in=notified).order_by("user__email").values_list("user_id", "user__email")
    for user_id, email in people:
        yield user_id, EmailMessage(subject, body, None, [email])
