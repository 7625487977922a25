"""Brings the books to what usage says at its prices: day by day, by differences, as often as one likes.

What is booked already stands. More of the same at the same price is one more entry. Another price, or less
than was booked, reverses what stands and books it anew. So whatever comes late, twice, or after a crash,
the sum of a day's entries is its quantities at their prices.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from celery.exceptions import SoftTimeLimitExceeded
from django.db import transaction
from django.db.models import Q, Sum

from controlplane.billing import items
from controlplane.billing.ledger.journal import Draft, billed_month, entries_write
from controlplane.billing.ledger_head import head_lock
from controlplane.billing.models import Account, EntryKind, LedgerHead, PostedDay, UsagePosting
from controlplane.billing.months import month_after
from controlplane.billing.price_list import PriceList
from controlplane.billing.quantities import Subject, quantities, quantity_marks, tenants_used

logger = logging.getLogger(__name__)

_PER_TRANSACTION: Final = 31
"""Days."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the books should say of a subject on a day.

    Attributes:
        unit_nano: price of `items.PER` of it; None: unpriced.
    """

    quantity: int
    unit_nano: int | None
    amount_nano: int


_NOTHING: Final = Wanted(0, None, 0)


def usage_post(*, tenant: str, start: dt.date, end: dt.date, seen: PriceList | None = None) -> int:
    """Books what changed of the tenant's usage of `start` to `end`, UTC days, both included.

    Args:
        seen: prices to find the days by, for a round over many tenants; what is booked is priced anew.

    Returns how many entries that took; 0 when the books say it already.
    """
    days, written = _days_changed(tenant, start, end, seen or PriceList.load()), 0
    for first in range(0, len(days), _PER_TRANSACTION):
        with transaction.atomic():
            head = head_lock(tenant=tenant)
            # Within the lock: another one may have been here meanwhile, with newer prices than were seen.
            written += _days_post(head, days[first : first + _PER_TRANSACTION], PriceList.load())
    return written


def usage_post_held(*, head: LedgerHead, start: dt.date, end: dt.date, prices: PriceList) -> int:
    """The same for who holds the lock on `head`, and read the prices under it."""
    days = _days_changed(head.tenant, start, end, prices)
    return _days_post(head, days, prices) if days else 0


def _days_changed(tenant: str, start: dt.date, end: dt.date, prices: PriceList) -> list[dt.date]:
    marks = _marks(tenant, start, end, prices)
    posted = PostedDay.objects.filter(tenant=tenant, day__range=(start, end))
    known = dict(posted.exclude(_untold(tenant)).values_list("day", "mark"))
    return [day for day in sorted({*marks, *known}) if marks.get(day, "") != known.get(day)]


def _untold(tenant: str) -> Q:
    """Days booked by a release that did not say whether all of it has a price. Months that are closed are not
    gone through again for it: a tenant has years of them, and no balance has what is unpriced in them."""
    closed = LedgerHead.objects.filter(pk=tenant).values_list("closed_through", flat=True).first()
    return Q(unpriced=None, day__gte=month_after(closed)) if closed else Q(unpriced=None)


def _days_post(head: LedgerHead, days: list[dt.date], prices: PriceList) -> int:
    # The marks are read before the quantities: what comes in between is seen in the next round. A mark may
    # be too old, which costs a look, and never too new.
    marks = _marks(head.tenant, days[0], days[-1], prices)
    drafts = list[Draft]()
    for day in days:
        target = wanted(tenant=head.tenant, day=day, prices=prices)
        drafts += _day_drafts(head, day, target)
        unpriced = any(lacks_price(subject, want) for subject, want in target.items())
        PostedDay.objects.update_or_create(
            tenant=head.tenant, day=day, defaults={"mark": marks.get(day, ""), "unpriced": unpriced}
        )
    return len(entries_write(head=head, drafts=drafts, currency=prices.currency()))


def usage_post_all(*, start: dt.date, end: dt.date) -> int:
    """Books every tenant's usage of these days; a tenant whose books cannot be written holds up no other."""
    written, seen = 0, PriceList.load()
    for tenant in tenants_used(start=start, end=end):
        try:
            written += usage_post(tenant=tenant, start=start, end=end, seen=seen)
        except SoftTimeLimitExceeded:
            raise
        except Exception:
            logger.exception("the usage of tenant %s is not booked; the next round tries again", tenant)
    return written


def books_check(*, start: dt.date, end: dt.date) -> list[str]:
    """Compares every tenant's books of these days with its usage, and logs what differs.

    A sentence for each day of a tenant that differs, and for each tenant that could not be compared: nobody
    knows that it agrees. Usage that comes in meanwhile is found as well, once.
    """
    found = list[str]()
    for tenant in tenants_used(start=start, end=end):
        try:
            drift = books_drift(tenant=tenant, start=start, end=end)
        except SoftTimeLimitExceeded:
            raise
        except Exception:
            logger.exception("the books of tenant %s are not compared with its usage", tenant)
            found.append(f"books of {tenant} could not be compared")
            continue
        found += [_drift_text(tenant, day, *amounts) for day, amounts in drift.items()]
    return found


def _drift_text(tenant: str, day: dt.date, booked: int, expected: int) -> str:
    return f"books of {tenant} on {day}: {booked} booked, {expected} expected"


def books_drift(*, tenant: str, start: dt.date, end: dt.date) -> dict[dt.date, tuple[int, int]]:
    """Days (UTC) whose entries are not what usage says at its prices -> (booked, expected) in nano-units.

    Right after `usage_post` of these days, with nothing coming in meanwhile, there are none.
    """
    prices = PriceList.load()
    booked: dict[dt.date, int] = defaultdict(int)
    rows = UsagePosting.objects.filter(tenant=tenant, day__range=(start, end)).values("day").order_by("day")
    booked |= {row["day"]: row["total"] for row in rows.annotate(total=Sum("amount_nano"))}
    days = quantity_marks(tenant=tenant, start=start, end=end)
    expected = {
        day: sum(item.amount_nano for item in wanted(tenant=tenant, day=day, prices=prices).values())
        for day in days
    }
    found = {}
    for day in sorted({*booked, *expected}):
        if booked.get(day, 0) != expected.get(day, 0):
            found[day] = booked.get(day, 0), expected.get(day, 0)
            logger.error("%s", _drift_text(tenant, day, *found[day]))
    return found


def wanted(*, tenant: str, day: dt.date, prices: PriceList) -> dict[Subject, Wanted]:
    """What the day's usage comes to, by subject. Time that the operator asks no price for is left out."""
    return used_wanted(quantities(tenant=tenant, day=day), tenant=tenant, day=day, prices=prices)


def used_wanted(
    used: Mapping[Subject, int], *, tenant: str, day: dt.date, prices: PriceList
) -> dict[Subject, Wanted]:
    """The same of quantities of one day that are known already."""
    found = {}

    @cache
    def bills(item: str) -> bool:
        return prices.bills(item, tenant=tenant, day=day)

    for subject, quantity in used.items():
        unit = prices.unit(
            subject.item, tenant=tenant, day=day, base_model=subject.base_model, adapter=subject.adapter,
            backend=subject.backend,
        )  # fmt: skip
        if unit is None and subject.item in items.TIMED and not bills(subject.item):
            continue
        total = 0 if unit is None else items.amount(subject.item, quantity=quantity, unit_nano=unit)
        found[subject] = Wanted(quantity, unit, total)
    return found


def _marks(tenant: str, start: dt.date, end: dt.date, prices: PriceList) -> dict[dt.date, str]:
    used = quantity_marks(tenant=tenant, start=start, end=end)
    return {day: f"{mark}|{prices.mark(tenant=tenant, day=day)}" for day, mark in used.items()}


def lacks_price(subject: Subject, want: Wanted) -> bool:
    """It is to be flagged. A request without tokens costs nothing at any price; with tokens, those are."""
    return want.unit_nano is None and subject.item != items.REQUEST


def _day_drafts(head: LedgerHead, day: dt.date, target: Mapping[Subject, Wanted]) -> Iterator[Draft]:
    booked: dict[Subject, list[UsagePosting]] = defaultdict(list)
    standing = UsagePosting.objects.filter(
        tenant=head.tenant, day=day, entry__kind=EntryKind.USAGE, entry__reversal=None
    )
    for posting in standing.select_related("entry").order_by("pk"):
        booked[Subject(*(getattr(posting, name) for name in UsagePosting.KEY))].append(posting)
    for subject in sorted({*booked, *target}):
        yield from _drafts(head, day, subject, booked.get(subject, []), target.get(subject, _NOTHING))


def _drafts(
    head: LedgerHead, day: dt.date, subject: Subject, standing: list[UsagePosting], want: Wanted
) -> Iterator[Draft]:
    total, quantity = sum(row.amount_nano for row in standing), sum(row.quantity for row in standing)
    if total > want.amount_nano or any(row.unit_nano != want.unit_nano for row in standing):
        for row in standing:
            yield _reversal(head, row)
        total = quantity = 0
    if want.unit_nano is not None and want.amount_nano > total:
        posting = UsagePosting(
            tenant=head.tenant,
            day=day,
            month=billed_month(head, day),
            **{name: getattr(subject, name) for name in UsagePosting.KEY},
            quantity=want.quantity - quantity,
            unit_nano=want.unit_nano,
            per=items.PER[subject.item],
            amount_nano=want.amount_nano - total,
        )
        yield Draft(
            day, EntryKind.USAGE, Account.UNBILLED, Account.REVENUE, posting.amount_nano, usage=posting
        )


def _reversal(head: LedgerHead, row: UsagePosting) -> Draft:
    undone = UsagePosting(
        tenant=row.tenant,
        day=row.day,
        month=billed_month(head, row.day),
        **{name: getattr(row, name) for name in UsagePosting.KEY},
        quantity=-row.quantity,
        unit_nano=row.unit_nano,
        per=row.per,
        amount_nano=-row.amount_nano,
    )
    return Draft(
        row.day, EntryKind.REVERSAL, Account.REVENUE, Account.UNBILLED, row.amount_nano,
        reverses=row.entry, usage=undone,
    )  # fmt: skip
