"""The saving of sharing machines over an endpoint for each adapter, and blended token prices.

    dedicated = adapter-hours x price of the machine that one adapter alone would need
    shared    = machine-hours x price of the machines that all of them share
    saving    = 1 - shared / dedicated

Amounts are nano-units of the prices' currency, rounded half up once per product and day.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from django.db.models import Max

from controlplane.billing.reports.fleet_bill import fleet_bill
from controlplane.billing.reports.instance_rates import InstancePrices, InstanceRate, price_on, saved_percent
from controlplane.billing.reports.models import HOUR, Plan
from controlplane.errors import InvalidInputError
from controlplane.metering.hosting.report import hosting_hours
from controlplane.metering.models import HostingKind

FORMULA: Final = "saving = 1 - shared / dedicated; dedicated = adapter-hours x price of dedicated_type"
TIERS: Final = ("placed", "stored")
_MOST_DAYS: Final = 31


@dataclass(frozen=True, slots=True)
class Saving:
    """Costs of dedicated and of shared machines, in nano-units.

    `percent` is decimal text. It is None without a dedicated cost to compare with, or if machines have no
    price, since the saving would then look larger than it is.

    Attributes:
        price: of the dedicated machine on the first day.
        unpriced: instance types without a price, whose machines are in no amount.
    """

    adapter_seconds: int
    dedicated_nano: int
    shared_nano: int
    currency: str
    price: InstanceRate
    unpriced: tuple[str, ...] = ()

    @property
    def percent(self) -> str | None:
        return None if self.unpriced else saved_percent(self.shared_nano, of_nano=self.dedicated_nano)


def saving_estimate(
    *,
    adapters: int,
    dedicated_type: str,
    shared_type: str,
    shared_instances: int,
    region: str,
    day: dt.date,
    plan: str = Plan.ON_DEMAND,
) -> Saving:
    """Return the saving of one hour with these adapters and machines, at the plan's prices of `day`.

    Raises InvalidInputError for a type without a price, or prices of two currencies.
    """
    prices = InstancePrices()
    dedicated = price_on(prices, day, dedicated_type, region, field="dedicated_type", plan=plan)
    shared = price_on(prices, day, shared_type, region, field="shared_type", plan=plan)
    if dedicated.currency != shared.currency:
        raise InvalidInputError("the two prices have different currencies", field="shared_type")
    return Saving(
        adapters * HOUR,
        adapters * dedicated.hour_nano,
        shared_instances * shared.hour_nano,
        dedicated.currency,
        dedicated,
    )


def saving_measured(*, start: dt.date, end: dt.date, dedicated_type: str, region: str, tier: str) -> Saving:
    """Return the fleet's saving on the UTC days `start` to `end`, both included.

    The cost of machines that ran is compared with dedicated endpoints, each day at that day's prices.

    Args:
        dedicated_type: instance type that each adapter version would have run on alone.
        tier: which adapters count: `placed` on deployments, or `stored`, which is all that could be called.

    Raises InvalidInputError: days in the wrong order or too many, an unknown tier, a type without price, or
    prices of several currencies.
    """
    if not dt.timedelta(0) <= end - start < dt.timedelta(days=_MOST_DAYS):
        raise InvalidInputError(
            f"end must be 0 to {_MOST_DAYS - 1} days after start: split longer periods and add up the "
            "results",
            field="end",
        )
    if tier not in TIERS:
        raise InvalidInputError(f"tier must be one of {', '.join(TIERS)}", field="tier")
    prices = InstancePrices()
    price = price_on(prices, start, dedicated_type, region, field="dedicated_type")
    hours = hosting_hours(tenant=None, start=start, end=end).filter(kind=HostingKind.ADAPTER, tier=tier)
    # An adapter on two deployments at once would still need only one endpoint.
    each = hours.values("day", "hour", "adapter").annotate(seconds=Max("quantity_seconds")).order_by()
    days: dict[dt.date, int] = defaultdict(int)
    for row in each:
        days[row["day"]] += int(row["seconds"])
    bill = fleet_bill(start=start, end=end, region=region)
    dedicated, currencies = 0, {price.currency, bill.currency or price.currency}
    for day, seconds in days.items():
        dedicated_price = price_on(prices, day, dedicated_type, region, field="dedicated_type")
        currencies.add(dedicated_price.currency)
        dedicated += dedicated_price.cost_nano(seconds)
    if len(currencies) > 1:
        raise InvalidInputError("the prices have different currencies", field="dedicated_type")
    return Saving(sum(days.values()), dedicated, bill.total, price.currency, price, bill.unpriced)


def blended_by_throughput(
    *, hour_nano: int, itl_p50_ms: Decimal, concurrency: int, discount: Decimal
) -> tuple[Decimal, Decimal]:
    """Return (price of a million tokens, tokens per second) by the formula of AWS's optimization toolkit.

    The price is (1 - discount) x hourly price / (throughput x 3600 / 1e6) / 4, with throughput = concurrency
    / median inter-token latency. `discount` is a fraction of 1.

    Raises InvalidInputError for a latency or concurrency of 0 or less, or a discount outside of 0 to 1.
    """
    if itl_p50_ms <= 0 or concurrency <= 0:
        raise InvalidInputError("itl_p50_ms and concurrency must be above 0", field="itl_p50_ms")
    if not 0 <= discount < 1:
        raise InvalidInputError("discount must be at least 0 and below 1", field="discount")
    throughput = Decimal(1000) / itl_p50_ms * concurrency
    an_hour = Decimal(hour_nano) / Decimal(10**9)
    return (1 - discount) * an_hour / (throughput * HOUR / 1_000_000) / 4, throughput


def blended_by_list_price(*, input_nano: int, output_nano: int) -> Decimal:
    """Return the price of a million tokens from nano-units per token: (3 x input + output) / 4."""
    return Decimal(3 * input_nano + output_nano) / 4 / 1000


@dataclass(frozen=True, slots=True)
class Blended:
    """The price of a million tokens by both formulas, in units of currency.

    Attributes:
        price: the machine's rate by the chosen plan.
        throughput: tokens per second.
        discount: fraction below the on-demand price; None if that price is unknown.
        by_list_price: None without both token prices.
    """

    price: InstanceRate
    by_throughput: Decimal
    throughput: Decimal
    discount: Decimal | None
    by_list_price: Decimal | None


def blended_prices(
    *,
    instance_type: str,
    region: str,
    itl_p50_ms: Decimal,
    concurrency: int,
    discount: Decimal,
    day: dt.date,
    plan: str = Plan.ON_DEMAND,
    input_nano: int | None = None,
    output_nano: int | None = None,
) -> Blended:
    """Return both blended prices, at the machine's rate on `day`. `*_nano` are nano-units per token.

    Args:
        discount: fraction below the on-demand price; 0 with another plan, whose rate includes it.

    Raises InvalidInputError for a machine without such a rate, and as `blended_by_throughput` does.
    """
    if discount and plan != Plan.ON_DEMAND:
        raise InvalidInputError("discount and plan exclude each other: its rate is net", field="discount")
    prices = InstancePrices()
    price = price_on(prices, day, instance_type, region, field="instance_type", plan=plan)
    by_throughput, throughput = blended_by_throughput(
        hour_nano=price.hour_nano, itl_p50_ms=itl_p50_ms, concurrency=concurrency, discount=discount
    )
    listed = None
    if input_nano is not None and output_nano is not None:
        listed = blended_by_list_price(input_nano=input_nano, output_nano=output_nano)
    applied = discount if plan == Plan.ON_DEMAND else _discount(prices, price, day)
    return Blended(price, by_throughput, throughput, applied, listed)


def _discount(prices: InstancePrices, rate: InstanceRate, day: dt.date) -> Decimal | None:
    """Return the fraction by which the rate is below the on-demand price, to four decimals."""
    listed = prices.on(day, instance_type=rate.instance_type, region=rate.region)
    if listed is None or not listed.hour_nano or listed.currency != rate.currency:
        return None
    return round(1 - Decimal(rate.hour_nano) / listed.hour_nano, 4)
