"""Requests that come when they come: latency at half of what the gateway can do.

Each is sent at its own time whether or not those before it have been answered, and its latency counts from
the time when it was due, so that a stall is seen by all who met it.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Iterator, Mapping
from typing import Final, cast
from urllib.parse import urlsplit

import uvloop

from benchmarks.figure import Figure
from benchmarks.gateway.processes import Target
from benchmarks.gateway.targets import KEY, PLAIN

ROUNDS: Final = 3
SECONDS: Final = 4
WARM_SECONDS: Final = 2
CONNECTIONS: Final = 64
P99_GOAL_MS: Final = 5.0


def figures(target: Target, capacity: float, beside: Mapping[str, Target]) -> Iterator[Figure]:
    """The tail of `target`; in its note, that of each of `beside`, which are asked in turn with it.

    Args:
        capacity: what the closed loop reached, in requests a second.
    """
    rate = capacity / 2
    rounds: dict[str, list[list[float]]] = {}
    for _ in range(ROUNDS):
        for name, each in {"": target, **beside}.items():
            rounds.setdefault(name, []).append(uvloop.run(latencies_at(each.url, rate)))
    p99s = {name: statistics.median(map(_p99_ms, runs)) for name, runs in rounds.items()}
    p99, latencies = p99s.pop(""), [one for run in rounds[""] for one in run]
    note = (
        f"goal: at most {P99_GOAL_MS:g} ms; {rate:.0f} requests/s at random times, median of {ROUNDS} rounds "
        f"of {SECONDS} s, {len(latencies)} answers, p50 {statistics.median(latencies) * 1000:.2f} ms, "
        f"longest {max(latencies) * 1000:.1f} ms; the generator shares the 2 cores; p99 in turn with it: "
        + ", ".join(f"{name} {value:.2f} ms" for name, value in p99s.items())
    )
    yield Figure(
        "gateway", "p99 in an open loop at half capacity", round(p99, 3), "ms", goal=P99_GOAL_MS,
        met=p99 <= P99_GOAL_MS, note=note,
    )  # fmt: skip


def _p99_ms(latencies: list[float]) -> float:
    return statistics.quantiles(latencies, n=100)[98] * 1000


class _Exchange(asyncio.Protocol):
    """One connection; requests wait for a free one, and end with the first of `failures`."""

    def __init__(self, idle: asyncio.Queue[_Exchange], latencies: list[float], failures: list[str]) -> None:
        self._idle, self._latencies, self._failures = idle, latencies, failures
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
        if not head.startswith(b"http/1.1 200") or b"content-length:" not in head:
            self._fail(f"the answer is no 200 with a length: {head!r}")
            return
        at = head.index(b"content-length:")
        size = int(head[at + 15 : head.index(b"\r", at)])
        if len(self._data) >= end + size:
            self._data = b""
            self._latencies.append(time.perf_counter() - self._due)
            self._idle.put_nowait(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"a connection has ended: {exc}")

    def _fail(self, failure: str) -> None:
        self._failures.append(failure)
        # Whoever waits for a free connection is woken by this one.
        self._idle.put_nowait(self)


async def latencies_at(url: str, rate: float) -> list[float]:
    """Seconds of each request, `rate` of them a second at random times, after a warm-up that is left out."""
    latencies, warm, _ = await exchanges_at(url, rate)
    return latencies[warm:]


async def exchanges_at(url: str, rate: float) -> tuple[list[float], int, int]:
    """Seconds of each answered request, how many of them were the warm-up's, and how many were sent.

    Raises:
        RuntimeError: an answer was not a 200 with a length, or a connection ended.
    """
    parts = urlsplit(url)
    request = _request(parts.netloc)
    loop = asyncio.get_running_loop()
    host, port = parts.hostname or "", parts.port or 80
    idle: asyncio.Queue[_Exchange] = asyncio.Queue()
    latencies: list[float] = []
    failures: list[str] = []
    exchanges: list[_Exchange] = []
    rng = random.Random(7)
    warm = sent = 0
    try:
        for _ in range(CONNECTIONS):
            _, made = await loop.create_connection(lambda: _Exchange(idle, latencies, failures), host, port)
            exchanges.append(made)
            idle.put_nowait(made)
        started = due = time.perf_counter()
        while due < started + WARM_SECONDS + SECONDS:
            due += rng.expovariate(rate)
            if (ahead := due - time.perf_counter()) > 0:
                await asyncio.sleep(ahead)
            exchange = await idle.get()
            if failures:
                raise RuntimeError(f"{url}: {failures[0]}")
            exchange.ask(request, due)
            sent += 1
            if not warm and due > started + WARM_SECONDS:
                warm = len(latencies)
        await asyncio.sleep(0.5)
    finally:
        for exchange in exchanges:
            exchange.close()
        await asyncio.sleep(0)
    return latencies, warm, sent


def _request(host: str) -> bytes:
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {KEY}\r\ncontent-length: {len(PLAIN)}\r\n\r\n"
    )
    return head.encode() + PLAIN
