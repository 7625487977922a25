"""Publishes today's prices in the route table, for gateways to enforce budgets. Invoices do not use them."""

from __future__ import annotations

import datetime as dt

from django.db import transaction

from contracts.limits import RateRoute
from controlplane.billing.models import Price
from controlplane.billing.price_list import EVERYONE, PriceList
from controlplane.routes.models import RouteEntryRow
from controlplane.routes.services import route_lock, route_remove, route_set


def rates_publish(*, today: dt.date | None = None) -> int:
    """Updates the route table's rates to the prices of `today` (UTC); returns how many changed."""
    current = _current_rates(today)
    if current == _published():
        return 0
    with transaction.atomic():
        route_lock()
        current, published = _current_rates(today), _published()
        changed = {path: rate for path, rate in current.items() if published.get(path) != rate}
        for path, rate in sorted(changed.items()):
            route_set(path=path, entry=rate)
        removed = sorted(set(published) - set(current))
        for path in removed:
            route_remove(path=path)
    return len(changed) + len(removed)


def _current_rates(today: dt.date | None) -> dict[str, RateRoute]:
    day = today or dt.datetime.now(dt.UTC).date()
    prices = PriceList.load()
    rates = {}
    for tenant, base, adapter in set(prices.priced(day=day)):
        if rate := _rate(prices, day, tenant, base, adapter):
            whose = f"/{tenant}" if tenant != EVERYONE else ""
            rates[f"rates/{base}{whose}{f'/{adapter}' if adapter else ''}"] = rate
    return rates


def _rate(prices: PriceList, day: dt.date, tenant: str, base: str, adapter: str) -> RateRoute | None:
    """Highest price over all backends, since the answering backend is unknown at admission.

    None without a price for all backends: calls to an unpriced backend would count as free.
    """
    if prices.call(tenant=tenant, day=day, base_model=base, adapter=adapter) is None:
        return None
    found = [
        price
        for backend in prices.backends()
        if (price := prices.call(tenant=tenant, day=day, base_model=base, adapter=adapter, backend=backend))
    ]
    return RateRoute(
        max(price.input_nano for price in found),
        max(price.cached_input_nano for price in found),
        max(price.output_nano for price in found),
        max(price.request_nano for price in found),
        max(reasoning) if (reasoning := _reasoning(found)) else None,
    )


def _reasoning(found: list[Price]) -> list[int]:
    """Return each price of the thought's tokens, the output's where there is no own; none if none has one."""
    if all(price.reasoning_nano is None for price in found):
        return []
    return [price.output_nano if price.reasoning_nano is None else price.reasoning_nano for price in found]


def _published() -> dict[str, RateRoute]:
    rows = RouteEntryRow.objects.filter(path__startswith="rates/")
    return {row.path: RateRoute.from_dict(row.entry) for row in rows}
