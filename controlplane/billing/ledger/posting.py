"""Books usage to the ledger at its prices: day by day, as differences, and safe to repeat.

Entries that still match are kept. More usage at the same price adds one entry. Another price, or less usage
than booked, reverses the entries and books the day's usage again. So the sum of a day's entries equals its
quantities at their prices, even when events are late or duplicated, or a run crashed.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
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
"""Days booked per transaction."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Amount that the ledger should have for a subject on a day.

    Attributes:
        unit_nano: price of `items.PER` of it; None: unpriced.
    """

    quantity: int
    unit_nano: int | None
    amount_nano: int


_NOTHING: Final = Wanted(0, None, 0)


def usage_post(*, tenant: str, start: dt.date, end: dt.date, seen: PriceList | None = None) -> int:
    """Books changes of the tenant's usage on the UTC days `start` to `end`, both included.

    Each transaction locks the tenant's ledger head and books up to 31 days.

    Args:
        seen: prices to find changed days by, shared by a round over many tenants. Amounts use prices that are
            read under the lock.

    Returns:
        How many entries were written; 0 if the ledger is up to date.
    """
    days, written = _days_changed(tenant, start, end, seen or PriceList.load()), 0
    for first in range(0, len(days), _PER_TRANSACTION):
        with transaction.atomic():
            head = head_lock(tenant=tenant)
            # Re-read the prices under the lock: another writer may have booked with newer ones meanwhile.
            written += _days_post(head, days[first : first + _PER_TRANSACTION], PriceList.load())
    return written


def usage_post_held(*, head: LedgerHead, start: dt.date, end: dt.date, prices: PriceList) -> int:
    """As `usage_post`, for a caller that holds the lock on `head` and read `prices` under it."""
    days = _days_changed(head.tenant, start, end, prices)
    return _days_post(head, days, prices) if days else 0


def _days_changed(tenant: str, start: dt.date, end: dt.date, prices: PriceList) -> list[dt.date]:
    marks = _marks(tenant, start, end, prices)
    posted = PostedDay.objects.filter(tenant=tenant, day__range=(start, end))
    known = dict(posted.exclude(_unpriced_unknown(tenant)).values_list("day", "mark"))
    return [day for day in sorted({*marks, *known}) if marks.get(day, "") != known.get(day)]


def _unpriced_unknown(tenant: str) -> Q:
    """Days booked by a release that did not record whether all usage has a price.

    Closed months are skipped: a tenant has years of them, and no balance includes their unpriced usage.
    """
    closed = LedgerHead.objects.filter(pk=tenant).values_list("closed_through", flat=True).first()
    return Q(unpriced=None, day__gte=month_after(closed)) if closed else Q(unpriced=None)


def _days_post(head: LedgerHead, days: list[dt.date], prices: PriceList) -> int:
    # Read the marks before the quantities. A mark may then be too old, which costs another comparison, but
    # never too new, which would hide usage that arrived in between.
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
    """Books every tenant's usage of these days; a failing tenant does not stop the others."""
    written, prices = 0, PriceList.load()
    for tenant in tenants_used(start=start, end=end):
        try:
            written += usage_post(tenant=tenant, start=start, end=end, seen=prices)
        except SoftTimeLimitExceeded:
            raise
        except Exception:
            logger.exception("posting usage of tenant %s failed; the next round retries", tenant)
    return written


def books_check(*, start: dt.date, end: dt.date) -> list[str]:
    """Compare every tenant's ledger with its usage on the days `start` to `end`, inclusive; log differences.

    Returns a sentence for each differing day of a tenant, and for each tenant that could not be compared.
    Usage that arrives during the check is reported too, by that check only.
    """
    found = list[str]()
    for tenant in tenants_used(start=start, end=end):
        try:
            drift = books_drift(tenant=tenant, start=start, end=end)
        except SoftTimeLimitExceeded:
            raise
        except Exception:
            logger.exception("comparing the ledger of tenant %s with its usage failed", tenant)
            found.append(f"ledger of {tenant} could not be compared with usage")
            continue
        found += [_drift_text(tenant, day, *amounts) for day, amounts in drift.items()]
    return found


def _drift_text(tenant: str, day: dt.date, booked: int, expected: int) -> str:
    return f"ledger of {tenant} on {day}: {booked} booked, {expected} expected"


def books_drift(*, tenant: str, start: dt.date, end: dt.date) -> dict[dt.date, tuple[int, int]]:
    """Return UTC days whose entries differ from usage at its prices -> (booked, expected) in nano-units.

    The result is empty right after `usage_post` of these days, unless usage arrived meanwhile.
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
    """Price the day's usage by subject. Timed items that no price book in force prices are left out."""
    return used_wanted(quantities(tenant=tenant, day=day), tenant=tenant, day=day, prices=prices)


def used_wanted(
    used: Mapping[Subject, int], *, tenant: str, day: dt.date, prices: PriceList
) -> dict[Subject, Wanted]:
    """As `wanted`, for quantities of one day that are known already."""
    found = {}

    @cache
    def bills(item: str) -> bool:
        return prices.bills(item, tenant=tenant, day=day)

    def unit_of(subject: Subject) -> int | None:
        return prices.unit(
            subject.item,
            tenant=tenant,
            day=day,
            base_model=subject.base_model,
            adapter=subject.adapter,
            backend=subject.backend,
        )

    for subject, quantity in _reasoning_folded(used, unit_of).items():
        unit = unit_of(subject)
        if unit is None and subject.item in items.TIMED and not bills(subject.item):
            continue
        total = 0 if unit is None else items.amount(subject.item, quantity=quantity, unit_nano=unit)
        found[subject] = Wanted(quantity, unit, total)
    return found


def _reasoning_folded(
    used: Mapping[Subject, int], unit_of: Callable[[Subject], int | None]
) -> Mapping[Subject, int]:
    """Return quantities in which tokens of the thought without a price of their own are output tokens."""
    folded: dict[Subject, int] = defaultdict(int)
    for subject, quantity in used.items():
        own = subject.item != items.REASONING or unit_of(subject) is not None
        folded[subject if own else replace(subject, item=items.OUTPUT)] += quantity
    return folded


def _marks(tenant: str, start: dt.date, end: dt.date, prices: PriceList) -> dict[dt.date, str]:
    used = quantity_marks(tenant=tenant, start=start, end=end)
    return {day: f"{mark}|{prices.mark(tenant=tenant, day=day)}" for day, mark in used.items()}


def lacks_price(subject: Subject, want: Wanted) -> bool:
    """Return True if the usage must be flagged as unpriced.

    Requests are never flagged: their tokens are, and a request without tokens counts as free.
    """
    return want.unit_nano is None and subject.item != items.REQUEST


def _day_drafts(head: LedgerHead, day: dt.date, target: Mapping[Subject, Wanted]) -> Iterator[Draft]:
    booked: dict[Subject, list[UsagePosting]] = defaultdict(list)
    active = UsagePosting.objects.filter(
        tenant=head.tenant, day=day, entry__kind=EntryKind.USAGE, entry__reversal=None
    )
    for posting in active.select_related("entry").order_by("pk"):
        booked[Subject(*(getattr(posting, name) for name in UsagePosting.KEY))].append(posting)
    for subject in sorted({*booked, *target}):
        yield from _drafts(head, day, subject, booked.get(subject, []), target.get(subject, _NOTHING))


def _drafts(
    head: LedgerHead, day: dt.date, subject: Subject, active: list[UsagePosting], want: Wanted
) -> Iterator[Draft]:
    total, quantity = sum(row.amount_nano for row in active), sum(row.quantity for row in active)
    if total > want.amount_nano or any(row.unit_nano != want.unit_nano for row in active):
        for row in active:
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
    negative = UsagePosting(
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
        row.day,
        EntryKind.REVERSAL,
        Account.REVENUE,
        Account.UNBILLED,
        row.amount_nano,
        reverses=row.entry,
        usage=negative,
    )
