"""The cost of single requests at the prices of their day. Invoices are computed from sums instead."""

from __future__ import annotations

from collections.abc import Iterable

from controlplane.billing.price_list import PriceList
from controlplane.billing.quantities import call_nano, call_price
from controlplane.metering.models import UNANSWERED, UsageEventRow
from controlplane.metering.selectors import SummedUse


def request_nano(row: UsageEventRow, prices: PriceList) -> int | None:
    """Return the attempt's cost in nano-units; None if it used tokens that have no price."""
    price = call_price(row, prices)
    if price is None:
        return None if row.prompt_tokens or row.completion_tokens else 0
    use = SummedUse(
        row.day,
        row.tenant,
        requests=1,
        answered=int(row.status not in UNANSWERED),
        prompt_tokens=row.prompt_tokens,
        cached_tokens=row.cached_tokens,
        completion_tokens=row.completion_tokens,
        reasoning_tokens=row.reasoning_tokens,
    )
    return call_nano(use, price)


def requests_nano(rows: Iterable[UsageEventRow], prices: PriceList) -> int | None:
    """Return the cost of several attempts in nano-units; None if any of them is unpriced."""
    found = [request_nano(row, prices) for row in rows]
    known = [nano for nano in found if nano is not None]
    return sum(known) if len(known) == len(found) else None
