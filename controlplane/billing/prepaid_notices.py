"""Prepaid money and credits that run low: told at 80 and 100 percent used, by webhook and by mail."""

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
from controlplane.tenants.limits.selectors import limits_prepaid
from controlplane.webhooks.outbox import event_emit

logger = logging.getLogger(__name__)

THRESHOLDS: Final = (80, 100)
"""Percent used of what was there after the last top-up."""
SCOPE: Final = "prepaid"
"""Of notices, instead of a limit's scope."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was known of a tenant before it was read how much is left.

    Attributes:
        top_ups: entries that added to what is prepaid or to credits, of which those count that have begun.
    """

    tenant: str
    mark: PrepaidMark | None
    top_ups: int


def prepaid_seen(*, tenant: str, today: dt.date) -> Seen:
    """Reads in this order, and what is left after it: that has in it whatever is counted here, and is of no
    use to who finds the mark moved meanwhile."""
    mark = PrepaidMark.objects.filter(tenant=tenant).first()
    # An invoice that asks for what is below 0 brings no money.
    entries = JournalEntry.objects.filter(tenant=tenant, credit__in=TOP_UPS).exclude(kind=EntryKind.SHORTFALL)
    # Counted, not the newest one's number: a credit may begin after a later entry.
    begun = entries.filter(Q(grant=None) | Q(grant__starts__lte=today))
    return Seen(tenant, mark, begun.count())


@transaction.atomic
def prepaid_tell(*, seen: Seen, left_nano: int) -> int:
    """Tells of the threshold that what is left has sunk to, each once a top-up; how many were told."""
    mark = seen.mark
    if mark is None:
        if left_nano > 0:
            new = {"peak_nano": left_nano, "top_ups": seen.top_ups}
            PrepaidMark.objects.get_or_create(tenant=seen.tenant, defaults=new)
        return 0
    # As it was before `left_nano` was read: of two tasks at once one warns, and none of what was left
    # before a top-up that another has seen.
    same = PrepaidMark.objects.filter(
        tenant=mark.tenant, top_ups=mark.top_ups, peak_nano=mark.peak_nano, told=mark.told
    )
    used = max((percent for percent in THRESHOLDS if _is_used(mark.peak_nano, left_nano, percent)), default=0)
    if not mark.top_ups:
        # Made by the release before, which did not count them.
        same.update(top_ups=seen.top_ups)
    elif seen.top_ups > mark.top_ups or left_nano > mark.peak_nano:
        same.update(top_ups=max(seen.top_ups, mark.top_ups), peak_nano=max(0, left_nano), told=0)
    elif used > mark.told and same.update(told=used):
        return _tell(mark, left_nano, used)
    return 0


def prepaid_lifted() -> list[str]:
    """Tenants that have a mark, and whose calls no longer stop when nothing is left."""
    stopping = limits_prepaid().order_by().values("tenant_id")
    return list(PrepaidMark.objects.exclude(tenant__in=stopping).values_list("tenant", flat=True))


def prepaid_forget(*, tenant: str) -> None:
    """A mark made later begins with what is left then."""
    PrepaidMark.objects.filter(tenant=tenant).delete()


def _is_used(peak_nano: int, left_nano: int, percent: int) -> bool:
    return left_nano * 100 <= peak_nano * (100 - percent)


def _tell(mark: PrepaidMark, left_nano: int, percent: int) -> int:
    notice, made = BudgetNotice.objects.get_or_create(
        scope=f"{SCOPE}:{mark.tenant}", period=str(mark.top_ups), percent=percent, budget_nano=mark.peak_nano,
        defaults={
            "tenant": mark.tenant, "spent_nano": mark.peak_nano - left_nano, "notify_at": timezone.now(),
        },
    )  # fmt: skip
    if not made:
        return 0
    logger.warning("%s has used %d percent of what is prepaid and of its credits", mark.tenant, percent)
    told = {"percent": percent, "left_nano": left_nano, "of_nano": mark.peak_nano}
    event_emit(tenant=mark.tenant, type="prepaid.threshold", data=told)
    enqueue(NOTIFY_TASK, notice_id=notice.pk)
    return 1
