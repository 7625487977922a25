"""Hourly rates of instances in comparisons.

The price table belongs to billing, which imports this app: billing supplies the look-up when it is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol

from controlplane.errors import InvalidInputError

REGION: Final = "us-east-1"
ON_DEMAND: Final = "on_demand"
PLANS: Final = (ON_DEMAND, "savings_plan_1y")


@dataclass(frozen=True, slots=True)
class RateInForce:
    """An instance type's hourly rate, with the row of the price table that states it.

    Attributes:
        hour: in `currency`.
        effective_from: the row's UTC day, as ISO 8601 text.
    """

    instance_type: str
    region: str
    plan: str
    hour: float
    currency: str
    source: str
    effective_from: str


class RateTable(Protocol):
    def __call__(self, *, instance_type: str, region: str, plan: str) -> RateInForce:
        """Return the rate in force today. Raises InvalidInputError if there is none."""


_tables: list[RateTable] = []


def rate_table_use(table: RateTable) -> None:
    """Look rates up in `table` from now on."""
    _tables[:] = [table]


def price_resolved(price: Mapping[str, Any]) -> dict[str, Any]:
    """Return a comparison's price with `hour` from the table, if it names an instance type.

    `rate` then says which row was used. Raises InvalidInputError if the table has no such rate.
    """
    if "instance_type" not in price:
        return dict(price)
    if not _tables:
        raise InvalidInputError("no table of instance prices is installed", field="price")
    rate = _tables[0](
        instance_type=price["instance_type"],
        region=price.get("region", REGION),
        plan=price.get("plan", ON_DEMAND),
    )
    others = {name: value for name, value in price.items() if name not in ("instance_type", "region", "plan")}
    return {**others, "hour": rate.hour, "currency": rate.currency, "rate": asdict(rate)}


def price_of_order(price: Mapping[str, Any]) -> dict[str, Any]:
    """Return the price as an order of `optimizer compare` has it, without the row of the table."""
    return {name: value for name, value in price.items() if name != "rate"}


def rates_of(arms: list[dict[str, Any]], settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the table's rates of a comparison: the common one, with `arm` "", and those of single arms."""
    prices = [("", settings.get("price", {})), *((arm["name"], arm.get("price", {})) for arm in arms)]
    return [{"arm": arm, **price["rate"]} for arm, price in prices if "rate" in price]
