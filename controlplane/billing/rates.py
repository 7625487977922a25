"""Today's prices in the route table, for gateways to hold budgets against. Bills are not made of these."""

from __future__ import annotations

import datetime as dt

from django.db import transaction

from contracts.limits import RateRoute
from controlplane.billing.price_list import EVERYONE, PriceList
from controlplane.routes.models import RouteEntryRow
from controlplane.routes.services import route_lock, route_remove, route_set


def rates_publish(*, today: dt.date | None = None) -> int:
    """Brings the route table's rates to what the price books say for `today` (UTC); changes made."""
    wanted = _wanted(today)
    if wanted == _published():
        return 0
    with transaction.atomic():
        route_lock()
        wanted, published = _wanted(today), _published()
        changed = {path: rate for path, rate in wanted.items() if published.get(path) != rate}
        for path, rate in sorted(changed.items()):
            route_set(path=path, entry=rate)
        gone = sorted(set(published) - set(wanted))
        for path in gone:
            route_remove(path=path)
    return len(changed) + len(gone)


def _wanted(today: dt.date | None) -> dict[str, RateRoute]:
    day = today or dt.datetime.now(dt.UTC).date()
    prices = PriceList.load()
    rates = {}
    for tenant, base, adapter in set(prices.priced(day=day)):
        if rate := _rate(prices, day, tenant, base, adapter):
            whose = f"/{tenant}" if tenant != EVERYONE else ""
            rates[f"rates/{base}{whose}{f'/{adapter}' if adapter else ''}"] = rate
    return rates


def _rate(prices: PriceList, day: dt.date, tenant: str, base: str, adapter: str) -> RateRoute | None:
    """The highest of all backends': which of them answers is not known when a budget is asked.

    None without a price for all backends: a call to one that has none would count nothing.
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
    )


def _published() -> dict[str, RateRoute]:
    rows = RouteEntryRow.objects.filter(path__startswith="rates/")
    return {row.path: RateRoute.from_dict(row.entry) for row in rows}
