"""Usage from the stream into the database, also beside a gateway at work, and a report of a million events.

A Redis-compatible server and one `manage.py ingest_usage` as processes, on PostgreSQL and on SQLite. The
stream is filled first; the clock runs from the first batch that leaves it to the last, so that what is
measured is an ingester that never waits. Events are of 20 tenants, 200 adapters drawn by Zipf's law, four
copies, three keys a tenant and 24 hours, with log-normal latencies. GRAFTWORK_TEST_POSTGRES_URL says where
PostgreSQL is; databases are made there and dropped.
"""

from __future__ import annotations

import datetime as dt
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final, cast

import redis

from benchmarks.chaos.database import fresh_database
from benchmarks.figure import Figure
from benchmarks.metering_lag import lag_figure
from benchmarks.metering_report import report_figure
from benchmarks.processes import POSTGRES, start, start_valkey
from contracts.redis_names import USAGE_STREAM
from contracts.usage_event import UsageEvent

EVENTS: Final = {"postgresql": 200_000, "sqlite": 50_000}
GOALS: Final = {"postgresql": 20_000.0, "sqlite": 5_000.0}
_TENANTS: Final = [f"tenant-{number}" for number in range(20)]


def run() -> Iterator[Figure]:
    """Yields events a second on either database, the lag beside a gateway, and the report's p95."""
    for name, url in (("postgresql", POSTGRES), ("sqlite", "")):
        with tempfile.TemporaryDirectory() as folder, fresh_database(url, Path(folder), _TENANTS) as database:
            rate = _ingest_rate(EVENTS[name], database, Path(folder))
            goal, note = GOALS[name], f"{EVENTS[name]} events, one ingester"
            value, met = round(rate, 1), rate >= goal
            yield Figure("metering", f"ingest_{name}", value, "event/s", goal=goal, met=met, note=note)
    with tempfile.TemporaryDirectory() as folder, fresh_database(POSTGRES, Path(folder)) as database:
        yield lag_figure(database, _environ(database, ""))
    with tempfile.TemporaryDirectory() as folder, fresh_database(POSTGRES, Path(folder)) as database:
        yield report_figure(_environ(database, ""))


def some_events(count: int, *, days: int = 1, tenants: int = 20, seed: int = 1) -> Iterator[UsageEvent]:
    """Events from 2026-09-01 on, spread evenly, in order of time."""
    draw = random.Random(seed)
    start = int(dt.datetime(2026, 9, 1, tzinfo=dt.UTC).timestamp() * 1000)
    adapters = [f"t_tenant-{n % tenants}.a_bot-{n}.v1.{n:012x}" for n in range(200)]
    weights = [1 / (n + 1) for n in range(200)]
    for number, chosen in enumerate(draw.choices(range(200), weights, k=count)):
        moment = start + number * days * 86_400_000 // count
        bits = f"{moment:012x}7{draw.getrandbits(12):03x}{1 << 63 | draw.getrandbits(62):016x}"
        event_id = f"{bits[:8]}-{bits[8:12]}-{bits[12:16]}-{bits[16:20]}-{bits[20:]}"
        prompt = draw.randrange(20, 2000)
        yield UsageEvent(
            event_id=event_id,
            tenant=f"tenant-{chosen % tenants}",
            project="default",
            key_id=f"{chosen % tenants:06x}{draw.randrange(3):06x}",
            request_id=f"req_{bits}",
            attempt=1,
            requested_model=f"bot-{chosen}@prod",
            alias="prod",
            arm="",
            adapter=adapters[chosen],
            base_model="base",
            operation="chat",
            backend="worker",
            endpoint=f"copy-{draw.randrange(4)}",
            status="ok" if draw.random() < 0.97 else "cancelled",
            error_code="",
            prompt_tokens=prompt,
            cached_tokens=prompt // 3,
            completion_tokens=draw.randrange(1, 600),
            reasoning_tokens=0,
            images=0,
            estimated=False,
            ttft_ms=round(draw.lognormvariate(4, 0.8), 3),
            itl_ms=round(draw.lognormvariate(3, 0.4), 3),
            duration_ms=900.25,
            started_at=moment,
            gateway_id="gateway-1",
        )


def _ingest_rate(count: int, database: str, folder: Path) -> float:
    with ExitStack() as stack:
        url = f"redis://127.0.0.1:{start_valkey(stack, folder)}/0"
        client = stack.enter_context(redis.Redis.from_url(url))
        with client.pipeline(transaction=False) as pipeline:
            for number, event in enumerate(some_events(count), 1):
                pipeline.xadd(USAGE_STREAM, {"event": event.to_json()})
                if number % 1000 == 0:
                    pipeline.execute()
            pipeline.execute()
        start(stack, [sys.executable, "manage.py", "ingest_usage"], _environ(database, url))
        while (left := cast(int, client.xlen(USAGE_STREAM))) == count:
            time.sleep(0.001)
        begun, ahead = time.perf_counter(), left
        while cast(int, client.xlen(USAGE_STREAM)):
            time.sleep(0.005)
        return ahead / (time.perf_counter() - begun)


def _environ(database: str, redis_url: str) -> dict[str, str]:
    return os.environ | {
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "GRAFTWORK_DATABASE_URL": database,
        "GRAFTWORK_SECRET_KEY": "benchmark",
        **({"GRAFTWORK_REDIS_URL": redis_url} if redis_url else {}),
    }
