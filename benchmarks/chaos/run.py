"""One run: load, kills, shutdown, and the verdict."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import httpx
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from benchmarks.chaos.clients import Clients
from benchmarks.chaos.database import Bill, read_bill, set_open
from benchmarks.chaos.plant import Plant
from benchmarks.chaos.reconcile import Verdict, reconcile
from benchmarks.processes import Killable
from contracts.redis_names import ROUTES_SNAPSHOT, ROUTES_VERSION, USAGE_STREAM
from gateway.admission.script import PREFIX, SLOTS

VICTIMS: Final = ("gateway", "upstream", "ingester", "redis", "gateway", "emptied redis")
"""Killed equally often, in random order; an emptied Redis returns without its data."""
_DOWN_SECONDS: Final = 1.0
"""Longest time that a process stays down."""
_PATIENCE_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run.

    Attributes:
        kills: how often each kind of process was killed.
        refused: answers other than 200 by status, and connections that broke before one.
    """

    kills: Counter[str]
    refused: Counter[str]
    bill: Bill
    verdict: Verdict
    seconds: float

    @property
    def faults(self) -> list[str]:
        """Everything that is wrong; empty when the bill is exact."""
        sums = [] if self.bill.sums_agree else ["daily sums differ from their events"]
        return [*self.verdict.wrong, *self.bill.dead, *sums]


async def run(
    folder: Path,
    database_url: str,
    *,
    streams: int,
    kills: int,
    at_once: int,
    seed: int,
    outages: bool = False,
    worker: Path | None = None,
) -> Outcome:
    """Run the load and the kills. Raises TimeoutError when something does not recover, or usage does not
    arrive.

    Args:
        database_url: migrated and empty.
        outages: also interrupt the database, which must be PostgreSQL.
        worker: folder of a checkpoint that a real worker serves as one of the two backends.
    """
    # Fewer slots than clients: some wait for one, so that a leaked slot would be noticed.
    plant = Plant(folder, database_url, places=max(1, 3 * at_once // 4), worker=worker)
    chaos = _Chaos(plant, streams, kills, seed, [*VICTIMS, *(["database"] if outages else [])])
    started = time.monotonic()
    try:
        for each in plant.processes:
            each.start()
        publishing = asyncio.create_task(_keep_routes(plant))
        await _until(plant, _ready)
        clients = Clients(plant.gateways, streams, at_once, seed, chaos.stream_ended)
        await clients.run()
        await chaos.over()
        await _until(plant, _ready)
        await _until(plant, _no_places)
        for gateway in plant.gateways:
            # A stop ships the remaining events, so that none can arrive after the bill is read.
            await asyncio.to_thread(gateway.stop)
        await _until(plant, _ingested)
        publishing.cancel()
        bill = await asyncio.to_thread(read_bill, database_url)
    finally:
        await asyncio.to_thread(plant.stop)
    generated, told = plant.generated()
    deaths = [each.deaths for each in plant.gateways]
    verdict = reconcile(clients.seen, bill.rows, generated, deaths, told)
    return Outcome(chaos.kills, clients.refused, bill, verdict, time.monotonic() - started)


class _Chaos:
    """Kills a process each time a number of streams has ended, and restarts it soon after."""

    def __init__(self, plant: Plant, streams: int, kills: int, seed: int, victims: Sequence[str]) -> None:
        self.kills: Counter[str] = Counter()
        self._plant = plant
        self._rng = random.Random(seed + 1)
        self._every = max(1, streams // (kills + 1))
        self._ended = 0
        self._plan = [victims[number % len(victims)] for number in range(kills)]
        self._rng.shuffle(self._plan)
        self._tasks: list[asyncio.Task[None]] = []
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def stream_ended(self) -> None:
        self._ended += 1
        if self._ended % self._every == 0 and self._plan:
            self._tasks.append(asyncio.create_task(self._strike(self._plan.pop())))

    async def over(self) -> None:
        """Return when every kill has been done and everything has been restarted."""
        self._tasks += [asyncio.create_task(self._strike(victim)) for victim in self._plan]
        self._plan = []
        await asyncio.gather(*self._tasks)

    async def _strike(self, victim: str) -> None:
        process = None if victim == "database" else self._rng.choice(self._processes(victim))
        pause = self._rng.uniform(0, _DOWN_SECONDS)
        # Kill a process again only after it has been restarted.
        async with self._locks[victim if process is None else process.name]:
            if process is None:
                await asyncio.to_thread(set_open, self._plant.database_url, open_=False)
                await asyncio.sleep(pause)
                await asyncio.to_thread(set_open, self._plant.database_url, open_=True)
            else:
                process.kill(self._rng)
                if victim == "emptied redis":
                    self._plant.empty_redis()
                await asyncio.sleep(pause)
                process.start()
        self.kills[victim] += 1

    def _processes(self, victim: str) -> Sequence[Killable]:
        plant = self._plant
        return {"gateway": plant.gateways, "upstream": plant.upstreams, "ingester": [plant.ingester]}.get(
            victim, [plant.redis]
        )


async def _keep_routes(plant: Plant) -> None:
    """Restore the routes after Redis was emptied, in place of the control plane's publisher."""
    table = plant.routes()
    # Without the client's own retries, which would delay the clients.
    retry = Retry(NoBackoff(), 0)
    with redis.Redis.from_url(plant.redis_url, socket_timeout=2, retry=retry) as client:
        while True:
            with contextlib.suppress(redis.exceptions.RedisError, OSError):
                if not client.exists(ROUTES_VERSION):
                    client.set(ROUTES_SNAPSHOT, table.snapshot())
                    client.set(ROUTES_VERSION, table.version)
                plant.keep_budgets(client)
            await asyncio.sleep(0.1)


async def _until(plant: Plant, state: Callable[[Plant], object]) -> None:
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while True:
            if await asyncio.to_thread(state, plant):
                return
            await asyncio.sleep(0.2)


def _ready(plant: Plant) -> bool:
    """Return True if every process runs and every gateway and worker accepts requests."""
    for each in plant.processes:
        if each.process is None or each.process.poll() is not None:
            raise RuntimeError(f"{each.name} has ended by itself: {each.log.read_text()[-3000:]}")
    try:
        return all(
            httpx.get(f"http://127.0.0.1:{each.port}{path}", timeout=5).status_code == 200
            for path, several in (("/readyz", plant.gateways), ("/health", plant.workers))
            for each in several
        )
    except httpx.TransportError:
        return False


def _no_places(plant: Plant) -> bool:
    """Return True if no living gateway holds a concurrency slot."""
    with redis.Redis.from_url(plant.redis_url, socket_timeout=2) as client:
        try:
            held = cast(dict[bytes, bytes], client.hgetall(f"{PREFIX}concurrency:tenant:acme"))
            living = cast(list[bytes], client.hvals(SLOTS))
        except (redis.exceptions.RedisError, OSError):
            return False
        return not any(name in held for name in living)


def _ingested(plant: Plant) -> bool:
    """Return True if the stream is empty: entries are deleted once they are in the database."""
    with redis.Redis.from_url(plant.redis_url, socket_timeout=2) as client:
        try:
            return not client.xlen(USAGE_STREAM)
        except (redis.exceptions.RedisError, OSError):
            return False
