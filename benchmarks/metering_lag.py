"""Delay of the database behind the gateway at 1,000 requests per second.

The gateway with every feature on, one `manage.py ingest_usage` and PostgreSQL run as processes. Requests
arrive at random times; meanwhile the rows in the database are counted ten times per second. At each count,
the lag is the time since the end of the first request that is not among them. Events are inserted in the
order in which they ended, so nothing that ended earlier is missing.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import psycopg
import redis

from benchmarks.figure import Figure
from benchmarks.gateway.open_loop import exchanges_at
from benchmarks.gateway.targets import direct, disk, gateway, valkey_port
from benchmarks.processes import start, wait_until
from contracts.redis_names import USAGE_GROUP, USAGE_STREAM

RATE: Final = 1000.0
GOAL_S: Final = 5.0
_PAUSE_S: Final = 0.1
_DRAIN_S: Final = 30.0


def lag_figure(database: str, environ: Mapping[str, str]) -> Figure:
    """Measure the lag; `environ` is the ingester's environment except for the address of Redis."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=disk())))
        target = gateway(stack, folder, direct(stack).url)
        redis_url = f"redis://127.0.0.1:{valkey_port(folder)}/0"
        ingester = {**environ, "GRAFTWORK_REDIS_URL": redis_url}
        start(stack, [sys.executable, "manage.py", "ingest_usage"], ingester)
        client = stack.enter_context(redis.Redis.from_url(redis_url))
        wait_until(lambda: _is_waited_on(client), name="the ingester")
        counts = stack.enter_context(_counting(database))
        latencies, warm, sent = exchanges_at(target.url, RATE)
        deadline = time.monotonic() + _DRAIN_S
        # Wait for all events, since an ingester that pauses would look as if it had everything.
        while not counts or counts[-1][1] < sent:
            if time.monotonic() > deadline:
                raise RuntimeError(f"of {sent} requests {counts[-1:]} are in after {_DRAIN_S:g} s")
            time.sleep(_PAUSE_S)
    lags = _lags(counts, _ends(database))
    looks = f"the longest of {len(lags)} looks, median {statistics.median(lags):.2f} s"
    return Figure(
        "metering",
        "lag_beside_1000_requests_per_s",
        round(max(lags), 2),
        "s",
        goal=GOAL_S,
        met=max(lags) <= GOAL_S,
        note=f"{looks}; {counts[-1][1]} events,"
        f" gateway p50 {statistics.median(latencies[warm:]) * 1000:.1f} ms; generator, gateway, ingester and"
        " PostgreSQL share the 2 cores",
    )


def _is_waited_on(client: redis.Redis) -> bool:
    """Return True if an ingester reads the stream; its start time must not count as lag."""
    try:
        return bool(client.xinfo_consumers(USAGE_STREAM, USAGE_GROUP))
    except redis.ResponseError:
        return False


def _lags(counts: list[tuple[float, int]], ends: list[float]) -> list[float]:
    """Return the lag of each count after the first request ended; 0 where all ended requests are inserted."""
    return [
        max(0.0, counted_at - ends[count]) if count < len(ends) else 0.0
        for counted_at, count in counts
        if bisect_right(ends, counted_at)
    ]


@contextlib.contextmanager
def _counting(database: str) -> Iterator[list[tuple[float, int]]]:
    """Yield a list that collects (Unix time, rows) counts until the context ends."""
    found: list[tuple[float, int]] = []
    stopped = threading.Event()

    def count_rows() -> None:
        with psycopg.connect(database, autocommit=True) as connection:
            while not stopped.wait(_PAUSE_S):
                counted_at = time.time()
                row = connection.execute("SELECT count(*) FROM metering_usageeventrow").fetchone()
                found.append((counted_at, int(row[0]) if row else 0))

    thread = threading.Thread(target=count_rows)
    thread.start()
    try:
        yield found
    finally:
        stopped.set()
        thread.join()


def _ends(database: str) -> list[float]:
    """Return the Unix times at which the requests in the database ended, in order."""
    with psycopg.connect(database) as connection:
        rows = connection.execute(
            "SELECT (started_at + duration_ms) / 1000 FROM metering_usageeventrow ORDER BY 1"
        )
        return [float(end) for (end,) in rows]
