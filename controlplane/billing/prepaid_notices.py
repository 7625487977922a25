"""Prepaid money and credits that run low: told at 80 and 100 percent used, by webhook and by mail."""

from __future__ import annotations

import datetime as dt
import logging
from typing import Final

from django.db import transaction
from django.utils import timezone

from controlplane.billing.budget_notices import NOTIFY_TASK
from controlplane.billing.models import BudgetNotice, PrepaidMark
from controlplane.queue import enqueue
from controlplane.webhooks.outbox import event_emit

logger = logging.getLogger(__name__)

THRESHOLDS: Final = (80, 100)
"""Percent used of what was there after the last top-up."""
SCOPE: Final = "prepaid"
"""Of notices, instead of a limit's scope."""
_TOPPED_UP: Final = 40
"""Percent left from which on it counts as topped up: usage is counted twice for a moment while it is booked,
and may not turn one warning into many."""


@transaction.atomic
def prepaid_tell(*, tenant: str, left_nano: int, today: dt.date) -> int:
    """Tells of the threshold that what is left has sunk to, once a top-up; how many were told."""
    mark = PrepaidMark.objects.filter(tenant=tenant).first()
    if mark is None:
        if left_nano > 0:
            PrepaidMark.objects.get_or_create(tenant=tenant, defaults={"peak_nano": left_nano})
        return 0
    same = PrepaidMark.objects.filter(tenant=tenant, peak_nano=mark.peak_nano, told=mark.told)
    used = max((percent for percent in THRESHOLDS if _is_used(mark.peak_nano, left_nano, percent)), default=0)
    if left_nano > mark.peak_nano or (mark.told and left_nano * 100 > mark.peak_nano * _TOPPED_UP):
        same.update(peak_nano=left_nano, told=0)
    elif used > mark.told:
        # Conditional, so that of two tasks at once one warns.
        return _tell(mark, left_nano, used, today) if same.update(told=used) else 0
    elif mark.told == 100 and left_nano > 0:
        same.update(told=80)
    return 0


def _is_used(peak_nano: int, left_nano: int, percent: int) -> bool:
    return left_nano * 100 <= peak_nano * (100 - percent)


def _tell(mark: PrepaidMark, left_nano: int, percent: int, today: dt.date) -> int:
    # Once a day at most for what was topped up to the same amount.
    notice, made = BudgetNotice.objects.get_or_create(
        scope=f"{SCOPE}:{mark.tenant}", period=today.isoformat(), percent=percent, budget_nano=mark.peak_nano,
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
