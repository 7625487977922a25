"""A month's report of a tenant with a million events, by many groupings, as the web process serves it.

As a program it asks one grouping after the other in turns and prints how long each answer took, as JSON:
`fill` makes the events, of which sums are made as they come in, and `ask` is another process, for what a
million events leave on the heap is not what a web server carries around.
"""

from __future__ import annotations

import datetime as dt
import gzip
import json
import statistics
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

from benchmarks.figure import Figure
from benchmarks.processes import run_python

EVENTS: Final = 1_000_000
TURNS: Final = 60
GOAL_MS: Final = 200.0
GROUPINGS: Final = (
    "day",
    "hour",
    "adapter",
    "version",
    "key",
    "base,status",
    "alias,arm",
    "adapter,key,status",
    "day,adapter",
    "day,version,alias,arm",
    "day,adapter,key",
)
_TENANT: Final = "tenant-0"
_FROM, _TO = dt.date(2026, 9, 1), dt.date(2026, 9, 30)


def report_figure(environ: Mapping[str, str]) -> Figure:
    """The p95 of the grouping that takes longest; `environ` names a migrated database that knows the base
    model of the events."""
    key = _program(environ, "fill")
    seconds, rows, days, hours = json.loads(_program(environ, "ask", key))
    p95 = {group: statistics.quantiles(taken, n=20)[-1] * 1000 for group, taken in seconds.items()}
    worst = max(p95, key=lambda group: p95[group])
    every = [second for taken in seconds.values() for second in taken]
    return Figure(
        "metering",
        "month_report_p95",
        round(p95[worst], 1),
        "ms",
        goal=GOAL_MS,
        met=p95[worst] <= GOAL_MS,
        note=f"by {worst}, {rows[worst]} rows, the slowest of {len(p95)} groupings "
        f"({', '.join(f'{group} {p95[group]:.0f}' for group in p95)}); "
        f"over all p95 {statistics.quantiles(every, n=20)[-1] * 1000:.0f}, median "
        f"{statistics.median(every) * 1000:.0f}; {EVENTS} events, {days} sums by day, {hours} by hour; "
        "the view in process, compressed by gzip, with the collector as the web process sets it",
    )


def _program(environ: Mapping[str, str], *arguments: str) -> str:
    return run_python(environ, "-m", "benchmarks.metering_report", *arguments).splitlines()[-1]


def fill() -> str:
    """Makes the tenant and its events, with a price of its base model; a key that may read usage."""
    import django

    django.setup()
    from django.db import connection

    from benchmarks.metering import some_events
    from controlplane.billing.services import price_book_create, price_set
    from controlplane.metering.event_rows import StreamEntry
    from controlplane.metering.services import usage_ingest
    from controlplane.tenants.services import api_key_create, tenant_create

    tenant = tenant_create(slug=_TENANT, name="Tenant")
    _, key = api_key_create(tenant=tenant, name="bench", scopes=["manage"])
    price_set(
        book=price_book_create(name="bench"),
        base_model="base",
        effective_from=_FROM,
        input_nano=100,
        cached_input_nano=25,
        output_nano=400,
    )
    batch: list[StreamEntry] = []
    for number, event in enumerate(some_events(EVENTS, days=30, tenants=1), 1):
        batch.append(StreamEntry(f"1793000000000-{number}", event.to_json().encode()))
        if len(batch) == 5000 or number == EVENTS:
            usage_ingest(entries=batch)
            batch = []
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    return str(key)


def ask(key: str) -> list[Any]:
    """Seconds and rows of each grouping, and how many sums there are."""
    # The application, for what it does to the process besides.
    import controlplane.asgi  # noqa: F401, I001
    from django.test import Client

    from controlplane.metering.models import UsageHour, UsageRollup

    # Compressed, as browsers and HTTP libraries ask for it: of the longest answer a third of the time.
    headers = {"Authorization": f"Bearer {key}", "Accept-Encoding": "gzip"}
    client = Client(SERVER_NAME="localhost", headers=headers)
    seconds: dict[str, list[float]] = {group: [] for group in GROUPINGS}
    rows: dict[str, int] = {}
    for turn in range(TURNS + 1):
        for group in GROUPINGS:
            begun = time.perf_counter()
            answer = client.get("/api/v1/usage", {"start": str(_FROM), "end": str(_TO), "group_by": group})
            taken = time.perf_counter() - begun
            assert answer.status_code == 200, answer.content
            assert answer.headers["Content-Encoding"] == "gzip"
            # The answer's own `json` would keep its rows until the collector's last round, in another's time.
            told = json.loads(gzip.decompress(answer.content))
            assert told["total"]["requests"] == EVENTS, told["total"]
            assert not told["total"]["unpriced"], told["total"]
            rows[group] = len(told["rows"])
            # The first turn imports and compiles.
            if turn:
                seconds[group].append(taken)
    return [seconds, rows, UsageRollup.objects.count(), UsageHour.objects.count()]


if __name__ == "__main__":
    print(fill() if sys.argv[1] == "fill" else json.dumps(ask(sys.argv[2])))
