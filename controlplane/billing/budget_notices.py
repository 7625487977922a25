"""Notify a tenant by webhook and mail at 50, 80 and 100 percent of a budget, once per period."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from django.conf import settings
from django.core.mail import EmailMessage
from django.db import transaction
from django.urls import reverse
from django.utils import timezone

from controlplane.billing.currency import money, money_rounded
from controlplane.billing.models import BudgetNotice
from controlplane.billing.price_list import PriceList
from controlplane.platform.mail_notices import notice_mail_send, notices_due
from controlplane.platform.mail_server import MailServer
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
_NOTIFIED_ROLES: Final = [
    role for role, permissions in GRANTS.items() if Permission.BILLING_READ in permissions
]
"""Roles that receive the mail: owners, admins and billing members."""


def thresholds_tell(*, limits: ScopeLimits, period: str, spent_nano: int) -> int:
    """Emits an event for each threshold newly reached in `period`; returns how many.

    Mail is sent for the highest new threshold only.
    """
    if not (budget := limits.budget_nano):
        return 0
    reached = [percent for percent in THRESHOLDS if spent_nano * 100 >= budget * percent]
    if not reached:
        return 0
    notices = BudgetNotice.objects.filter(scope=limits.scope, period=period, budget_nano=budget)
    known = set(notices.values_list("percent", flat=True))
    new = [percent for percent in reached if percent not in known]
    return sum(
        _notify(limits, period, budget, spent_nano, percent, mail=percent == new[-1]) for percent in new
    )


@transaction.atomic
def _notify(
    limits: ScopeLimits, period: str, budget_nano: int, spent_nano: int, percent: int, *, mail: bool
) -> bool:
    # The unique constraint lets only one of two concurrent tasks create the notice and send it.
    notice, made = BudgetNotice.objects.get_or_create(
        scope=limits.scope,
        period=period,
        percent=percent,
        budget_nano=budget_nano,
        defaults={
            "tenant": limits.tenant_id,
            "spent_nano": spent_nano,
            "notify_at": timezone.now() if mail else None,
        },
    )
    if not made:
        return False
    logger.warning("budget of %s: %d percent spent in %s", limits.scope, percent, period)
    data = {
        "scope": limits.scope,
        "period": period,
        "percent": percent,
        "spent_nano": spent_nano,
        "budget_nano": budget_nano,
    }
    event_emit(tenant=limits.tenant_id, type="budget.threshold", data=data)
    if mail:
        enqueue(NOTIFY_TASK, notice_id=notice.pk)
    return True


def budget_notice_send(*, notice_id: int, server: MailServer) -> bool:
    """Mails the tenant's owners, admins and billing members; see `platform.mail_notices`."""
    rows = BudgetNotice.objects.filter(pk=notice_id)
    return notice_mail_send(rows=rows, server=server, messages=_messages)


def budget_notices_due() -> list[int]:
    """Ids of the notices whose mail is due, oldest first; at most 1,000."""
    return notices_due(BudgetNotice.objects.all())


def _messages(notice: BudgetNotice, notified: list[int]) -> Iterator[tuple[int, EmailMessage]]:
    tenant = Tenant.objects.filter(pk=notice.tenant).first()
    if tenant is None:
        return
    # Prepaid notices have neither period nor key; see `prepaid_notices`.
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
    members = Membership.objects.filter(tenant=tenant, role__in=_NOTIFIED_ROLES, user__is_active=True)
    people = members.exclude(user__in=notified).order_by("user__email").values_list("user_id", "user__email")
    for user_id, email in people:
        yield user_id, EmailMessage(subject, body, None, [email])
