"""Quantities of all kinds that are priced, by day: the one place that the ledger reads use from.

What measures something new (time of hosting, storage) becomes a source here, and with that is priced,
posted, invoiced and reported like tokens.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

from django.db.models import Q, QuerySet, Sum

from contracts.adapters.reference import EngineName
from contracts.errors import ContractError
from controlplane.billing import items
from controlplane.billing.models import Price
from controlplane.metering.models import HostingHour, HostingKind, UsageHour, UsageRollup
from controlplane.metering.selectors import SummedUse, rollup_list


@dataclass(frozen=True, slots=True, order=True)
class Subject:
    """What was used, by whom: what a line of an invoice is about.

    Attributes:
        adapter: its name; "" for the base alone.
        item: one of `items`.
    """

    project: str
    key_id: str
    adapter: str
    base_model: str
    backend: str
    item: str


class QuantitySource(Protocol):
    """Something that measures use, day by day (UTC)."""

    def marks(self, *, tenant: str, start: dt.date, end: dt.date) -> dict[dt.date, str]:
        """By day with any use: a text that is another one whenever the day's quantities are others."""

    def read(self, *, tenant: str, day: dt.date) -> Iterable[tuple[Subject, int]]:
        """The day's quantities in the units of `items.PER`; a subject may come more than once."""


class CallQuantities:
    """Tokens and requests, from the daily sums of usage events."""

    def marks(self, *, tenant: str, start: dt.date, end: dt.date) -> dict[dt.date, str]:
        """Sums only grow, and each event adds to the requests."""
        days = rollup_list(tenant=tenant, start=start, end=end).values("day").order_by("day")
        return {row["day"]: str(row["total"]) for row in days.annotate(total=Sum("requests"))}

    def read(self, *, tenant: str, day: dt.date) -> Iterator[tuple[Subject, int]]:
        for rollup in rollup_list(tenant=tenant, start=day, end=day):
            name = adapter_name(rollup.adapter)
            for item, quantity in call_items(rollup):
                subject = Subject(
                    rollup.project, rollup.key_id, name, rollup.base_model, rollup.backend, item
                )
                yield subject, quantity


class HostingQuantities:
    """Time of what is there for a tenant, from the hourly sums of hosting: adapters that are placed, its own
    accelerators, the bytes of its files. What is the operator's own is nobody's bill."""

    def marks(self, *, tenant: str, start: dt.date, end: dt.date) -> dict[dt.date, str]:
        """Seconds are only added."""
        rows = self._hours(tenant).filter(day__range=(start, end)).values("day").order_by("day")
        return {row["day"]: str(row["total"]) for row in rows.annotate(total=Sum("quantity_seconds"))}

    def read(self, *, tenant: str, day: dt.date) -> Iterable[tuple[Subject, int]]:
        """The day's, summed over its hours."""
        return self.by_day(tenant=tenant, start=day, end=day).get(day, {}).items()

    def by_day(self, *, tenant: str, start: dt.date, end: dt.date) -> dict[dt.date, dict[Subject, int]]:
        """Those of the UTC days `start` to `end`, both included, in one query."""
        rows = self._hours(tenant).filter(day__range=(start, end)).order_by()
        found: dict[dt.date, dict[Subject, int]] = defaultdict(lambda: defaultdict(int))
        for row in rows.values("day", "kind", "adapter", "base_model").annotate(
            total=Sum("quantity_seconds")
        ):
            item = _HOSTED[HostingKind(row["kind"])]
            subject = Subject("", "", adapter_name(row["adapter"]), row["base_model"], "", item)
            found[row["day"]][subject] += int(row["total"])
        return found

    def _hours(self, tenant: str) -> QuerySet[HostingHour]:
        hours = HostingHour.objects.filter(tenant=tenant, kind__in=_HOSTED)
        return hours.exclude(Q(kind=HostingKind.ADAPTER) & ~Q(tier="placed"))


_HOSTED: Final = {
    HostingKind.ADAPTER: items.ADAPTER_HOUR,
    HostingKind.GPU: items.GPU_HOUR,
    HostingKind.STORAGE: items.STORAGE_GB_HOUR,
}
HOSTING: Final = HostingQuantities()
SOURCES: Final[tuple[QuantitySource, ...]] = (CallQuantities(), HOSTING)


def tenants_used(*, start: dt.date, end: dt.date) -> list[str]:
    """Tenants of whom any source may have something on these days (UTC)."""
    days = {"day__range": (start, end)}
    calls = UsageRollup.objects.filter(**days).order_by().values_list("tenant", flat=True).distinct()
    hosted = HostingHour.objects.filter(**days).order_by().values_list("tenant", flat=True).distinct()
    return sorted({*calls, *hosted} - {""})


def first_day() -> dt.date | None:
    """The oldest UTC day of which any source has something; sums are kept for ever."""
    oldest = (
        UsageRollup.objects.order_by("day").values_list("day", flat=True).first(),
        HostingHour.objects.order_by("day").values_list("day", flat=True).first(),
    )
    return min((day for day in oldest if day is not None), default=None)


def quantity_marks(*, tenant: str, start: dt.date, end: dt.date) -> dict[dt.date, str]:
    """Every source's marks, joined; days without any use are left out."""
    found: dict[dt.date, list[str]] = defaultdict(list)
    for index, source in enumerate(SOURCES):
        for day, mark in source.marks(tenant=tenant, start=start, end=end).items():
            found[day].append(f"{index}={mark}")
    return {day: ";".join(marks) for day, marks in found.items()}


def quantities(*, tenant: str, day: dt.date) -> dict[Subject, int]:
    """What the tenant used on a UTC day, by subject; nothing of a subject is left out."""
    sums: dict[Subject, int] = defaultdict(int)
    for source in SOURCES:
        for subject, quantity in source.read(tenant=tenant, day=day):
            if quantity:
                sums[subject] += quantity
    return dict(sums)


def call_items(rollup: UsageRollup | UsageHour | SummedUse) -> tuple[tuple[str, int], ...]:
    """What is priced of calls. A prompt's cached tokens are told apart; failed attempts are no requests."""
    return (
        (items.INPUT, rollup.prompt_tokens - rollup.cached_tokens),
        (items.CACHED_INPUT, rollup.cached_tokens),
        (items.OUTPUT, rollup.completion_tokens),
        (items.REQUEST, rollup.answered),
    )


CallUnits = tuple[int, int, int, int]
"""Nano-units of an input token, a cached one, an output token and a request."""
UNPRICED: Final[CallUnits] = (0, 0, 0, 0)
"""Stands, as this object, for no price at all."""


def call_units(price: Price) -> CallUnits:
    """What `calls_nano` needs of a price."""
    return price.input_nano, price.cached_input_nano, price.output_nano, price.request_nano


def calls_nano(
    units: Iterable[CallUnits],
    prompt: Iterable[int],
    cached: Iterable[int],
    completion: Iterable[int],
    answered: Iterable[int],
) -> list[int]:
    """What calls cost, to the nano-unit, of columns of equal length: `call_items` times their prices."""
    # Written out: a third of the time of looking each item up, of which a report has tens of thousands.
    return [
        (tokens - known) * by_input + known * by_cached + output * by_output + requests * by_request
        for (by_input, by_cached, by_output, by_request), tokens, known, output, requests in zip(
            units, prompt, cached, completion, answered, strict=True
        )
    ]


def call_nano(rollup: UsageRollup | UsageHour | SummedUse, price: Price) -> int:
    """The same of one."""
    of = rollup.prompt_tokens, rollup.cached_tokens, rollup.completion_tokens, rollup.answered
    return calls_nano([call_units(price)], *([value] for value in of))[0]


# More than a tenant has: of a report that goes through more than are kept, in their order, none is found.
@lru_cache(maxsize=50_000)
def adapter_name(engine_name: str) -> str:
    """The adapter that an engine name is a version of."""
    try:
        return EngineName.parse(engine_name).adapter if engine_name else ""
    except ContractError:
        return engine_name
