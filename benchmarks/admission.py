"""CPU cost of limits per request on the gateway's event loop: all kinds on four scopes, against no limit.

Thread CPU time, so that other work on the machine does not count. Each round measures both; medians are
reported. One request looks up the plan, is admitted, builds the headers and settles. A real broker draws the
leases from a real server, whose answers arrive between requests as in a gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from benchmarks.figure import Figure
from benchmarks.processes import start_valkey
from contracts.limits import Limit, LimitsRoute, RateRoute, budget_key, budget_period
from contracts.route_table import RouteTable
from gateway.admission import Admission, Broker, clock
from gateway.admission.script import EPOCH
from gateway.routing import Caller

ROUNDS: Final = 9
REQUESTS: Final = 20_000
GOAL_US: Final = 30.0
_SCOPES: Final = ("tenant:acme", "project:acme/p", "key:k", "model:acme/base")
_CALLER: Final = Caller("k", "acme", "p")


def run() -> Iterator[Figure]:
    """Measure and yield the figures."""
    limited, unlimited, calls = asyncio.run(_measure())
    added = limited - unlimited
    note = f"16 limits: 4 kinds on 4 scopes, drawing of leases included; goal: below {GOAL_US:g} us"
    metric, met = "CPU that limits add to a request", added < GOAL_US
    yield Figure("admission", metric, round(added, 2), "us", met=met, note=note)
    yield Figure("admission", "CPU of admission without a limit", round(unlimited, 2), "us")
    yield Figure("admission", "calls to Redis per 1,000 requests", round(calls, 2), "")


async def _measure() -> tuple[float, float, float]:
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        client = await _server(stack, Path(folder))
        broker = Broker(client, "bench")
        task = asyncio.create_task(broker.run())
        admission = Admission(broker, queue_seconds=10, queue_length=100)
        tables = {True: await _table(client), False: RouteTable()}
        found: dict[bool, list[float]] = {True: [], False: []}
        for number in range(ROUNDS + 1):
            for limits, table in tables.items():
                spent = await _round(admission, table)
                if number:  # the first warms up and draws the first leases
                    found[limits].append(spent)
        calls = await _calls(client) / ((ROUNDS + 1) * REQUESTS / 1000)
        task.cancel()
        await broker.close()
        await client.aclose()
    return statistics.median(found[True]), statistics.median(found[False]), calls


async def _round(admission: Admission, table: RouteTable) -> float:
    """Return microseconds of this thread's CPU time per request."""
    began = time.thread_time()
    for number in range(REQUESTS):
        plan = admission.plan(table, _CALLER, "base", "base")
        ticket = await admission.admit(plan, 100, 200)
        plan.headers(clock.now())
        ticket.count(90, 10, 50)
        ticket.settle()
        if number % 16 == 0:
            await asyncio.sleep(0)
    return (time.thread_time() - began) / REQUESTS * 1e6


async def _table(client: Redis) -> RouteTable:
    """Return limits that are never reached, with budgets that have a baseline."""
    kinds = (
        Limit("requests", 10**9),
        Limit("tokens", 10**12),
        Limit("concurrency", 10**4),
        Limit("budget", 10**15),
    )
    name, _ = budget_period("month", dt.datetime.now(dt.UTC))
    for scope in _SCOPES:
        await client.hset(budget_key(scope, name), mapping={"base": 0, "cut": 1})
    rates = {"base": RateRoute(150, 15, 600)}
    return RouteTable(limits={scope: LimitsRoute(kinds) for scope in _SCOPES}, rates=rates)


async def _calls(client: Redis) -> int:
    statistics_of_commands = await client.info("commandstats")
    return int(statistics_of_commands["cmdstat_evalsha"]["calls"])


async def _server(stack: contextlib.ExitStack, folder: Path) -> Redis:
    client = Redis(port=start_valkey(stack, folder), retry=Retry(NoBackoff(), 0), socket_timeout=5)
    # Backdate the data's epoch, so that limits start without quarantine.
    await client.hset(EPOCH, mapping={"id": "bench", "until": 0})
    return client
