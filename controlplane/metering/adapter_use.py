"""Usage of one adapter: sums by day, version, alias and outcome, and its newest requests' latencies."""

from __future__ import annotations

import datetime as dt
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from django.db.models import Sum

from controlplane.metering.models import UsageEventRow
from controlplane.metering.selectors import rollup_list

NEWEST: Final = 20_000
"""Number of the tenant's newest requests whose latency is read; an adapter without any of them has none."""
CALLED_DAYS: Final = 7
"""Days after which a name without calls counts as unused."""
_DAYS_BACK: Final = 1
"""Days before today that are searched for the newest requests, to bound the partitions read."""


@dataclass(frozen=True, slots=True)
class DayUse:
    """Sums of one UTC day. `adapter` is an engine name; `errors` counts those of the requests."""

    day: dt.date
    adapter: str
    alias: str
    requests: int
    errors: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Times:
    """Time to the first token of `requests` requests, in milliseconds."""

    requests: int
    p50_ms: float
    p95_ms: float


def adapter_use(*, tenant: str, prefix: str, start: dt.date, end: dt.date) -> list[DayUse]:
    """Return usage of engine names with this prefix on the UTC days `start` to `end`, both included.

    One query; a row for each day, version and alias.
    """
    rows = rollup_list(tenant=tenant, start=start, end=end).filter(adapter__startswith=prefix).order_by()
    sums = rows.values("day", "adapter", "alias", "status").annotate(
        asked=Sum("requests"), read=Sum("prompt_tokens"), written=Sum("completion_tokens")
    )
    found: dict[tuple[dt.date, str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for row in sums:
        held = found[row["day"], row["adapter"], row["alias"]]
        held[0] += row["asked"]
        held[1] += row["asked"] if row["status"] == "error" else 0
        held[2] += row["read"] + row["written"]
    return [DayUse(*key, *held) for key, held in sorted(found.items())]


def adapter_is_called(*, tenant: str, name: str) -> bool:
    """Return True if the adapter was called in the last `CALLED_DAYS` days other than by an alias."""
    today = dt.datetime.now(dt.UTC).date()
    rows = rollup_list(tenant=tenant, start=today - dt.timedelta(days=CALLED_DAYS), end=today)
    return rows.filter(adapter__startswith=f"t_{tenant}.a_{name}.", alias="", requests__gt=0).exists()


def adapter_requests(*, tenant: str, start: dt.date, end: dt.date) -> Mapping[str, int]:
    """Return requests by engine name on the UTC days `start` to `end`, both included; '' is base models.

    One query, which reads every sum of the tenant in these days.
    """
    rows = rollup_list(tenant=tenant, start=start, end=end).order_by()
    return dict(rows.values_list("adapter").annotate(Sum("requests")))


def first_token_times(*, tenant: str, adapters: Iterable[str], today: dt.date) -> Mapping[str, Times]:
    """Return first-token latencies by engine name, from the tenant's `NEWEST` requests since yesterday.

    Engine names are those of `adapters` that have any.
    """
    newest = UsageEventRow.objects.filter(
        tenant=tenant, day__range=(today - dt.timedelta(days=_DAYS_BACK), today)
    ).order_by("-event_id")
    wanted, times = set(adapters), defaultdict[str, list[float]](list)
    for adapter, ttft in newest.values_list("adapter", "ttft_ms")[:NEWEST].iterator(chunk_size=NEWEST):
        if adapter in wanted and ttft is not None:
            times[adapter].append(ttft)
    return {name: _times(sorted(values)) for name, values in times.items()}


def _times(ordered: list[float]) -> Times:
    def share(of: float) -> float:
        return ordered[math.ceil(of * len(ordered)) - 1]

    return Times(len(ordered), share(0.5), share(0.95))
