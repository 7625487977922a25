"""Notify a tenant at 80 and 100 percent used of its prepaid balance and credits."""

from __future__ import annotations

import datetime as dt
import logging
from dataclasses import dataclass
from typing import Final

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from controlplane.billing.budget_notices import NOTIFY_TASK
from controlplane.billing.models import TOP_UPS, BudgetNotice, EntryKind, JournalEntry, PrepaidMark
from controlplane.platform.queue import enqueue
from controlplane.tenants.limits.models import ScopeLimits
from controlplane.webhooks.outbox import event_emit

logger = logging.getLogger(__name__)

THRESHOLDS: Final = (80, 100)
"""Percent used of the peak since the last top-up."""
SCOPE: Final = "prepaid"
"""Scope prefix of these notices, in the place of a limit's scope."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A tenant's mark and top-ups, as read before its remaining balance.

    Attributes:
        top_ups: entries that added to the prepaid balance, or to credits that have started.
    """

    tenant: str
    mark: PrepaidMark | None
    top_ups: int


def prepaid_seen(*, tenant: str, today: dt.date) -> Seen:
    """Read the mark, then the top-ups. Call it before reading the remaining balance.

    A balance that is read afterwards includes every top-up counted here. If the mark changes meanwhile,
    `prepaid_tell` discards that balance.
    """
    mark = PrepaidMark.objects.filter(tenant=tenant).first()
    # Invoicing a negative balance brings no money.
    entries = JournalEntry.objects.filter(tenant=tenant, credit__in=TOP_UPS).exclude(kind=EntryKind.SHORTFALL)
    # Count entries instead of taking the newest number: a credit may start after a later entry.
    started = entries.filter(Q(grant=None) | Q(grant__starts__lte=today))
    return Seen(tenant, mark, started.count())


@transaction.atomic
def prepaid_tell(*, seen: Seen, left_nano: int) -> int:
    """Notifies of the highest threshold reached, once per top-up; returns how many notices, 0 or 1.

    It also creates the mark, and moves it when a top-up or a higher balance is found.
    """
    mark = seen.mark
    if mark is None:
        if left_nano > 0:
            new = {"peak_nano": left_nano, "top_ups": seen.top_ups}
            PrepaidMark.objects.get_or_create(tenant=seen.tenant, defaults=new)
        return 0
    # Match the mark as read before `left_nano`: only one of two concurrent tasks warns, and none does with
    # a balance from before a top-up that another task recorded.
    same = PrepaidMark.objects.filter(
        tenant=mark.tenant, top_ups=mark.top_ups, peak_nano=mark.peak_nano, told=mark.told
    )
    used = max((percent for percent in THRESHOLDS if _is_used(mark.peak_nano, left_nano, percent)), default=0)
    if not mark.top_ups:
        # The mark is from the previous release, which did not count top-ups.
        same.update(top_ups=seen.top_ups)
    elif seen.top_ups > mark.top_ups or left_nano > mark.peak_nano:
        same.update(top_ups=max(seen.top_ups, mark.top_ups), peak_nano=max(0, left_nano), told=0)
    elif used > mark.told and same.update(told=used):
        return _notify(mark, left_nano, used)
    return 0


def prepaid_lifted() -> list[str]:
    """Return tenants with a mark whose calls no longer stop at a zero balance."""
    stopping = ScopeLimits.objects.filter(prepaid_stop=True, api_key=None).order_by().values("tenant_id")
    return list(PrepaidMark.objects.exclude(tenant__in=stopping).values_list("tenant", flat=True))


def prepaid_forget(*, tenant: str) -> None:
    """Deletes the mark, so that a later one starts with the balance at that time."""
    PrepaidMark.objects.filter(tenant=tenant).delete()


def _is_used(peak_nano: int, left_nano: int, percent: int) -> bool:
    return left_nano * 100 <= peak_nano * (100 - percent)


def _notify(mark: PrepaidMark, left_nano: int, percent: int) -> int:
    notice, made = BudgetNotice.objects.get_or_create(
        scope=f"{SCOPE}:{mark.tenant}",
        period=str(mark.top_ups),
        percent=percent,
        budget_nano=mark.peak_nano,
        defaults={
            "tenant": mark.tenant,
            "spent_nano": mark.peak_nano - left_nano,
            "notify_at": timezone.now(),
        },
    )
    if not made:
        return 0
    logger.warning("%s has used %d percent of its prepaid balance and credits", mark.tenant, percent)
    data = {"percent": percent, "left_nano": left_nano, "of_nano": mark.peak_nano}
    event_emit(tenant=mark.tenant, type="prepaid.threshold", data=data)
    enqueue(NOTIFY_TASK, notice_id=notice.pk)
    return 1
