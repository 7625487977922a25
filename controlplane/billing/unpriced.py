"""Tells whether a tenant has unpriced usage, so that amounts without that usage can be flagged.

The answer follows the last booking, as balances do: within minutes of the usage, or of the price.
"""

from __future__ import annotations

import datetime as dt

from controlplane.billing.models import LedgerHead, PostedDay
from controlplane.billing.months import month_after


def usage_unpriced(*, tenant: str, start: dt.date, end: dt.date) -> bool:
    """Return True if usage on the UTC days `start` to `end`, both included, has no price.

    Tokens count, and timed items that a price book in force prices at all.
    """
    return PostedDay.objects.filter(tenant=tenant, day__range=(start, end), unpriced=True).exists()


def unbilled_unpriced(*, tenant: str) -> bool:
    """Return True if usage of an open month has no price, and so is missing from the balances."""
    days, head = PostedDay.objects.filter(tenant=tenant, unpriced=True), LedgerHead.objects.filter(pk=tenant)
    if closed := head.values_list("closed_through", flat=True).first():
        days = days.filter(day__gte=month_after(closed))
    return days.exists()
