"""Requests that come when they come: latency at half of what the gateway can do.

Each is sent at its own time whether or not those before it have been answered, and its latency counts from
the time when it was due, so that a stall is seen by all who met it.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Iterator
from typing import Final, cast
from urllib.parse import urlsplit

import uvloop

from benchmarks.figure import Figure
from benchmarks.gateway.processes import Target
from benchmarks.gateway.targets import KEY, PLAIN

SECONDS: Final = 8
WARM_SECONDS: Final = 2
CONNECTIONS: Final = 64
P99_GOAL_MS: Final = 5.0


def figures(target: Target, capacity: float) -> Iterator[Figure]:
    """`capacity` is what the closed loop reached, in requests a second."""
    rate = capacity / 2
    latencies = uvloop.run(latencies_at(target.url, rate))
    p99 = statistics.quantiles(latencies, n=100)[98] * 1000
    note = (
        f"goal: at most {P99_GOAL_MS:g} ms; {rate:.0f} requests/s at random times for {SECONDS} s, "
        f"{len(latencies)} answers, p50 {statistics.median(latencies) * 1000:.2f} ms, "
        f"longest {max(latencies) * 1000:.1f} ms; the generator shares the 2 cores"
    )
    yield Figure(
        "gateway", "p99 in an open loop at half capacity", round(p99, 3), "ms", goal=P99_GOAL_MS,
        met=p99 <= P99_GOAL_MS, note=note,
    )  # fmt: skip


class _Exchange(asyncio.Protocol):
    """One connection; requests wait for a free one."""

    def __init__(self, idle: asyncio.Queue[_Exchange], latencies: list[float]) -> None:
        self._idle, self._latencies = idle, latencies
        self._due = 0.0
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def ask(self, request: bytes, due: float) -> None:
        self._due = due
        self._transport.write(request)

    def close(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._data += data
        end = self._data.find(b"\r\n\r\n") + 4
        if end < 4:
            return
        head = self._data[:end].lower()
        if not head.startswith(b"http/1.1 200"):
            raise RuntimeError(f"the gateway answered {head!r}")
        at = head.index(b"content-length:")
        size = int(head[at + 15 : head.index(b"\r", at)])
        if len(self._data) >= end + size:
            self._data = b""
            self._latencies.append(time.perf_counter() - self._due)
            self._idle.put_nowait(self)


async def latencies_at(url: str, rate: float) -> list[float]:
    """Seconds of each request, `rate` of them a second at random times, after a warm-up that is left out."""
    latencies, warm, _ = await exchanges_at(url, rate)
    return latencies[warm:]


async def exchanges_at(url: str, rate: float) -> tuple[list[float], int, int]:
    """Seconds of each answered request, how many of them were the warm-up's, and how many were sent."""
    parts = urlsplit(url)
    request = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {KEY}\r\ncontent-length: {len(PLAIN)}\r\n\r\n"
    ).encode() + PLAIN
    loop = asyncio.get_running_loop()
    host, port = parts.hostname or "", parts.port or 80
    idle: asyncio.Queue[_Exchange] = asyncio.Queue()
    latencies: list[float] = []
    for _ in range(CONNECTIONS):
        _, exchange = await loop.create_connection(lambda: _Exchange(idle, latencies), host, port)
        idle.put_nowait(exchange)
    rng = random.Random(7)
    started = due = time.perf_counter()
    warm = sent = 0
    while due < started + WARM_SECONDS + SECONDS:
        due += rng.expovariate(rate)
        if (ahead := due - time.perf_counter()) > 0:
            await asyncio.sleep(ahead)
        (await idle.get()).ask(request, due)
        sent += 1
        if not warm and due > started + WARM_SECONDS:
            warm = len(latencies)
    await asyncio.sleep(0.5)
    while not idle.empty():
        idle.get_nowait().close()
    await asyncio.sleep(0)
    return latencies, warm, sent
