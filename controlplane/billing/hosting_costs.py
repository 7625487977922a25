"""Cost of a tenant's hosting time by adapter, computed as the ledger will book it."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from controlplane.billing.ledger.posting import used_wanted
from controlplane.billing.price_list import PriceList
from controlplane.billing.quantities import HOSTING


@dataclass(slots=True)
class HostingCost:
    """Cost of one item for one adapter, or for a base model's accelerators.

    Attributes:
        adapter: its name; "" for the tenant's own accelerators.
        item: one of `items.TIMED`.
        quantity: in the unit of `items.PER`: seconds, for storage byte-seconds.
        nano: nano-units; None if part of the quantity has no price.
        billed: False if no price book in force prices this item: the time is free then.
    """

    adapter: str
    base_model: str
    item: str
    quantity: int = 0
    nano: int | None = 0
    billed: bool = False


def hosting_costs(*, tenant: str, start: dt.date, end: dt.date) -> list[HostingCost]:
    """Return costs of the UTC days `start` to `end`, both included.

    Amounts are rounded once per day and item, as in the journal.
    """
    prices = PriceList.load()
    found: dict[tuple[str, str, str], HostingCost] = {}
    for day, used in HOSTING.by_day(tenant=tenant, start=start, end=end).items():
        priced = used_wanted(used, tenant=tenant, day=day, prices=prices)
        for subject, quantity in used.items():
            key = (subject.adapter, subject.base_model, subject.item)
            cost = found.setdefault(key, HostingCost(*key))
            cost.quantity += quantity
            if (want := priced.get(subject)) is None:
                continue
            cost.billed = True
            if want.unit_nano is None:
                cost.nano = None
            elif cost.nano is not None:
                cost.nano += want.amount_nano
    return [found[key] for key in sorted(found)]
