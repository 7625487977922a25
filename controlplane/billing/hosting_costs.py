"""What time of hosting costs a tenant, by adapter: as the books have it, before they have it."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from controlplane.billing.ledger.posting import used_wanted
from controlplane.billing.price_list import PriceList
from controlplane.billing.quantities import HOSTING


@dataclass(slots=True)
class HostingCost:
    """Of one adapter and item, or of a base model's accelerators.

    Attributes:
        adapter: its name; "" for accelerators of the tenant's own.
        item: one of `items.TIMED`.
        quantity: in the unit that `items.PER` counts: seconds, of storage byte-seconds.
        nano: nano-units; None where part of it has no price.
        billed: False where no book asks a price for this kind of time: then it costs nothing.
    """

    adapter: str
    base_model: str
    item: str
    quantity: int = 0
    nano: int | None = 0
    billed: bool = False


def hosting_costs(
    *, tenant: str, start: dt.date, end: dt.date, prices: PriceList | None = None
) -> list[HostingCost]:
    """Of the UTC days `start` to `end`, both included, rounded once a day and item as the journal rounds."""
    known = prices or PriceList.load()
    found: dict[tuple[str, str, str], HostingCost] = {}
    for day, used in HOSTING.by_day(tenant=tenant, start=start, end=end).items():
        priced = used_wanted(used, tenant=tenant, day=day, prices=known)
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
