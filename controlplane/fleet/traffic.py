"""Each copy's traffic in the last minutes, from metering."""

from __future__ import annotations

import datetime as dt
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from django.db.models import Count, Q, Sum

from controlplane.metering.models import UsageEventRow

_TIMED: Final = 20_000
"""Maximum number of recent requests in percentiles: more add no precision and slow down the page."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Totals of the attempts that began within the window and have ended."""

    requests: int = 0
    errors: int = 0
    client_errors: int = 0
    tokens: int = 0
    seconds: float = 1.0
    ttft_p50_ms: float | None = None
    ttft_p95_ms: float | None = None

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds

    @property
    def error_share(self) -> float:
        return self.errors / self.requests if self.requests else 0.0


def traffic_by_copy(*, minutes: int, now: dt.datetime, copy: str = "") -> tuple[dict[str, Traffic], Traffic]:
    """Return (traffic by copy, total), or the traffic of `copy` only, in two queries for any fleet size."""
    since = now - dt.timedelta(minutes=minutes)
    # The filter on days limits PostgreSQL to their partitions.
    rows = UsageEventRow.objects.filter(
        day__range=(since.astimezone(dt.UTC).date(), now.astimezone(dt.UTC).date()),
        started_at__gte=int(since.timestamp() * 1000),
        endpoint__gt="",
    )
    if copy:
        rows = rows.filter(endpoint=copy)
    times: dict[str, list[float]] = defaultdict(list)
    timed = rows.filter(ttft_ms__isnull=False).order_by("-started_at")
    for endpoint, ttft in timed.values_list("endpoint", "ttft_ms")[:_TIMED]:
        times[endpoint].append(float(ttft or 0))
    sums = rows.values("endpoint").annotate(
        requests=Count("*"),
        errors=Count("status", filter=Q(status="error")),
        client_errors=Count("status", filter=Q(status="client_error")),
        tokens=Sum("prompt_tokens") + Sum("completion_tokens"),
    )
    found = {
        row["endpoint"]: _traffic(
            row["requests"],
            row["errors"],
            row["client_errors"],
            row["tokens"],
            minutes,
            times[row["endpoint"]],
        )
        for row in sums
    }
    whole = _traffic(
        sum(item.requests for item in found.values()),
        sum(item.errors for item in found.values()),
        sum(item.client_errors for item in found.values()),
        sum(item.tokens for item in found.values()),
        minutes,
        [ttft for ttfts in times.values() for ttft in ttfts],
    )
    return found, whole


def _traffic(
    requests: int, errors: int, client_errors: int, tokens: int, minutes: int, ttfts: list[float]
) -> Traffic:
    ordered = sorted(ttfts)
    return Traffic(
        requests, errors, client_errors, tokens, minutes * 60.0, share(ordered, 0.5), share(ordered, 0.95)
    )


def share(ordered: Sequence[float], part: float) -> float | None:
    """Return the nearest-rank percentile of sorted values, or None without values."""
    return round(ordered[math.ceil(part * len(ordered)) - 1], 3) if ordered else None
