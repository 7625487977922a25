"""Whether a tenant used what no price is for: an amount that does not have it in it must say so.

By what was booked last, as balances are: within minutes of the usage, or of the price.
"""

from __future__ import annotations

import datetime as dt

from controlplane.billing.models import LedgerHead, PostedDay
from controlplane.billing.months import month_after


def usage_unpriced(*, tenant: str, start: dt.date, end: dt.date) -> bool:
    """Some tokens, or billed time, of the UTC days `start` to `end`, both included, have no price."""
    return PostedDay.objects.filter(tenant=tenant, day__range=(start, end), unpriced=True).exists()


def unbilled_unpriced(*, tenant: str) -> bool:
    """Some usage of months that are not closed is in no balance, for want of a price."""
    days, head = PostedDay.objects.filter(tenant=tenant, unpriced=True), LedgerHead.objects.filter(pk=tenant)
    if closed := head.values_list("closed_through", flat=True).first():
        days = days.filter(day__gte=month_after(closed))
    return days.exists()
