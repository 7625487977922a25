"""Rates of instances on a day, looked up in the price table."""

from __future__ import annotations

import datetime as dt
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

from django.utils import timezone

from controlplane.billing.reports.models import HOUR, InstancePrice, Plan
from controlplane.errors import InvalidInputError
from controlplane.optimization.instance_rates import RateInForce


@dataclass(frozen=True, slots=True)
class InstanceRate:
    """A row of the price table, with the hourly rate that it states or that follows from it.

    Attributes:
        effective_from: UTC day; the later one where the rate follows from that of another type.
    """

    id: int
    instance_type: str
    region: str
    plan: str
    effective_from: dt.date
    currency: str
    hour_nano: int
    source: str

    def cost_nano(self, seconds: int) -> int:
        """Return the cost of `seconds` of one instance in nano-units, rounded half up."""
        return (2 * seconds * self.hour_nano + HOUR) // (2 * HOUR)

    @property
    def plan_label(self) -> str:
        return str(Plan(self.plan).label)


@dataclass(frozen=True, slots=True)
class InstanceSaving:
    """How far an instance type's rate is below that of another one.

    Attributes:
        percent: decimal text; negative if the type is the more expensive one.
        rate, reference: both rates; None where only their difference is published.
    """

    percent: str
    source: str
    effective_from: dt.date
    rate: InstanceRate | None
    reference: InstanceRate | None


class InstancePrices:
    """All instance prices in memory."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str, str], list[InstancePrice]] = defaultdict(list)
        for row in InstancePrice.objects.order_by("effective_from"):
            self._rows[row.instance_type, row.region, row.plan].append(row)

    def on(
        self, day: dt.date, *, instance_type: str, region: str, plan: str = Plan.ON_DEMAND
    ) -> InstanceRate | None:
        """Return the rate in force on a day; None before the first, or if the row's reference has none."""
        row = self.row(day, instance_type=instance_type, region=region, plan=plan)
        if row is None:
            return None
        if row.hour_nano is not None:
            return _rate(row, row.hour_nano)
        reference = self.row(day, instance_type=row.reference_type, region=region, plan=plan)
        if reference is None or reference.hour_nano is None or row.percent_below is None:
            return None
        return _below(row, reference, reference.hour_nano * (100 - row.percent_below) / 100)

    def row(self, day: dt.date, *, instance_type: str, region: str, plan: str) -> InstancePrice | None:
        """Return the row in force on a day."""
        rows = self._rows.get((instance_type, region, plan), [])
        reached = bisect_right(rows, day, key=lambda row: row.effective_from)
        return rows[reached - 1] if reached else None


def _rate(row: InstancePrice, hour_nano: int) -> InstanceRate:
    return InstanceRate(
        row.pk,
        row.instance_type,
        row.region,
        row.plan,
        row.effective_from,
        row.currency,
        hour_nano,
        row.source,
    )


def _below(row: InstancePrice, reference: InstancePrice, hour_nano: Decimal) -> InstanceRate:
    return InstanceRate(
        row.pk,
        row.instance_type,
        row.region,
        row.plan,
        max(row.effective_from, reference.effective_from),
        reference.currency,
        int(hour_nano.quantize(Decimal(1), ROUND_HALF_UP)),
        f"{row.percent_below}% below {row.reference_type} ({row.source}); {reference.source}",
    )


def saved_percent(cost_nano: int, *, of_nano: int) -> str | None:
    """Return 1 - cost / of in percent as decimal text, rounded half up; None if `of_nano` is 0."""
    if not of_nano:
        return None
    saved = 1 - Decimal(cost_nano) / Decimal(of_nano)
    return f"{(saved * 100).quantize(Decimal('0.01'), ROUND_HALF_UP)}"


def price_on(
    prices: InstancePrices,
    day: dt.date,
    instance_type: str,
    region: str,
    *,
    field: str,
    plan: str = Plan.ON_DEMAND,
) -> InstanceRate:
    """Return the rate in force. Raises InvalidInputError, naming `field`, if there is none."""
    found = prices.on(day, instance_type=instance_type, region=region, plan=plan)
    if found is not None:
        return found
    row = prices.row(day, instance_type=instance_type, region=region, plan=plan)
    missing = instance_type if row is None else row.reference_type
    what = "price" if plan == Plan.ON_DEMAND else f"{Plan(plan).label} rate"
    why = "" if row is None else f", and that of {instance_type[:40]} is {row.percent_below}% below it"
    raise InvalidInputError(
        f"{missing[:40]!r} has no {what} in {region[:30]!r} on {day}{why}: add one by POST /instance-prices",
        field=field,
    )


def instance_saving(
    *, instance_type: str, compared_with: str, region: str, plan: str, day: dt.date
) -> InstanceSaving:
    """Return how far one type's rate is below another's, also where only the difference is published.

    Raises InvalidInputError if neither the rates nor their difference is in the table.
    """
    prices = InstancePrices()
    row = prices.row(day, instance_type=instance_type, region=region, plan=plan)
    if row is not None and row.reference_type == compared_with:
        rate = prices.on(day, instance_type=instance_type, region=region, plan=plan)
        reference = prices.on(day, instance_type=compared_with, region=region, plan=plan)
        return InstanceSaving(f"{row.percent_below}", row.source, row.effective_from, rate, reference)
    rate = price_on(prices, day, instance_type, region, field="instance_type", plan=plan)
    reference = price_on(prices, day, compared_with, region, field="compared_with", plan=plan)
    percent = saved_percent(rate.hour_nano, of_nano=reference.hour_nano)
    if percent is None or rate.currency != reference.currency:
        raise InvalidInputError("the two rates cannot be compared", field="compared_with")
    since = max(rate.effective_from, reference.effective_from)
    return InstanceSaving(percent, f"{rate.source}; {reference.source}", since, rate, reference)


def rate_in_force(*, instance_type: str, region: str, plan: str) -> RateInForce:
    """Return today's rate for a comparison. Raises InvalidInputError if the table has none."""
    day = timezone.now().date()
    rate = price_on(InstancePrices(), day, instance_type, region, field="price", plan=plan)
    return RateInForce(
        instance_type=rate.instance_type,
        region=rate.region,
        plan=rate.plan,
        hour=rate.hour_nano / 10**9,
        currency=rate.currency,
        source=rate.source,
        effective_from=rate.effective_from.isoformat(),
    )
