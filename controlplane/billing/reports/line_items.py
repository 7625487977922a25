"""The cost of calls by item."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from controlplane.billing import items
from controlplane.billing.price_list import PriceList, call_unit
from controlplane.billing.quantities import adapter_name, call_items
from controlplane.metering.models import UsageRollup
from controlplane.metering.selectors import SummedUse

_TITLES: Final = {
    items.INPUT: "input tokens",
    items.CACHED_INPUT: "cached input tokens",
    items.OUTPUT: "output tokens",
    items.REQUEST: "requests",
}


@dataclass(frozen=True, slots=True)
class LineItem:
    """One item of one model's calls.

    Attributes:
        name: `<model>, <item>`.
        quantity: tokens, or requests.
        nano: nano-units of the currency; None where the model has no price.
    """

    name: str
    quantity: int
    nano: int | None


def line_items(rollup: UsageRollup | SummedUse, prices: PriceList) -> Iterator[LineItem]:
    """Yield the items of a day's sums that have usage."""
    adapter = adapter_name(rollup.adapter)
    price = prices.call(
        tenant=rollup.tenant,
        day=rollup.day,
        base_model=rollup.base_model,
        adapter=adapter,
        backend=rollup.backend,
    )
    for item, quantity in call_items(rollup):
        # Requests are an item only if they have a price above 0.
        if not quantity or (item == items.REQUEST and not (price and price.request_nano)):
            continue
        nano = None if price is None else quantity * call_unit(price, item)
        yield LineItem(f"{adapter or rollup.base_model}, {_TITLES[item]}", quantity, nano)
