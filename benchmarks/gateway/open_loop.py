"""Open-loop requests at random times: latency at half of the gateway's capacity.

Each request is sent at its own time whether or not the previous ones were answered. Its latency counts from
the time it was due, so that a stall affects every request that meets it.
"""

from __future__ import annotations

import random
import select
import socket
import statistics
import time
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import urlsplit

from benchmarks.figure import Figure
from benchmarks.gateway.targets import KEY, PLAIN, Target

ROUNDS: Final = 3
SECONDS: Final = 4
WARM_SECONDS: Final = 2
CONNECTIONS: Final = 64
P99_GOAL_MS: Final = 5.0
_PATIENCE_SECONDS: Final = 10.0


def figures(target: Target, capacity: float, beside: Mapping[str, Target]) -> Iterator[Figure]:
    """Yield the tail latency of `target`; the note has that of each of `beside`, measured in alternation.

    Args:
        capacity: requests per second that the closed loop reached.
    """
    rate = capacity / 2
    rounds: dict[str, list[list[float]]] = {}
    for _ in range(ROUNDS):
        for name, each in {"": target, **beside}.items():
            rounds.setdefault(name, []).append(latencies_at(each.url, rate))
    p99s = {name: statistics.median(map(_p99_ms, runs)) for name, runs in rounds.items()}
    p99, latencies = p99s.pop(""), [one for run in rounds[""] for one in run]
    note = (
        f"goal: at most {P99_GOAL_MS:g} ms; {rate:.0f} requests/s at random times, median of {ROUNDS} rounds "
        f"of {SECONDS} s, {len(latencies)} answers, p50 {statistics.median(latencies) * 1000:.2f} ms, "
        f"longest {max(latencies) * 1000:.1f} ms; the generator shares the 2 cores; p99 in turn with it: "
        + ", ".join(f"{name} {value:.2f} ms" for name, value in p99s.items())
    )
    metric, met = "p99 in an open loop at half capacity", p99 <= P99_GOAL_MS
    yield Figure("gateway", metric, round(p99, 3), "ms", goal=P99_GOAL_MS, met=met, note=note)


def _p99_ms(latencies: list[float]) -> float:
    return statistics.quantiles(latencies, n=100)[98] * 1000


class _Connection:
    """One connection, with at most one request in flight."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._data = b""
        self.due = 0.0

    def fileno(self) -> int:
        return self._socket.fileno()

    def ask(self, request: bytes, due: float) -> None:
        self.due = due
        self._socket.sendall(request)

    def answered(self) -> bool:
        """Read available data; return True if the answer is complete. Raises RuntimeError."""
        data = self._socket.recv(1 << 16)
        if not data:
            raise RuntimeError("a connection has ended")
        self._data += data
        end = self._data.find(b"\r\n\r\n") + 4
        if end < 4:
            return False
        head = self._data[:end].lower()
        if not head.startswith(b"http/1.1 200") or b"content-length:" not in head:
            raise RuntimeError(f"the answer is no 200 with a length: {head!r}")
        start = head.index(b"content-length:")
        size = int(head[start + 15 : head.index(b"\r", start)])
        if len(self._data) < end + size:
            return False
        self._data = b""
        return True

    def close(self) -> None:
        self._socket.close()


def latencies_at(url: str, rate: float) -> list[float]:
    """Return the seconds of each request, at `rate` per second at random times, without the warm-up."""
    latencies, warm, _ = exchanges_at(url, rate)
    return latencies[warm:]


def exchanges_at(url: str, rate: float) -> tuple[list[float], int, int]:
    """Return the seconds of each answered request, the number of warm-up ones, and the number sent.

    Uses `select`, which waits with microsecond resolution. An event loop's timers have a resolution of a
    millisecond: requests would be sent in bursts, and their delay would count as the target's.

    Raises:
        RuntimeError: an answer was not a 200 with a length, or a connection ended.
    """
    parts = urlsplit(url)
    request = _request(parts.netloc)
    latencies: list[float] = []
    busy: set[_Connection] = set()
    rng = random.Random(7)
    warm = sent = 0
    idle = [_Connection((parts.hostname or "", parts.port or 80)) for _ in range(CONNECTIONS)]
    every = list(idle)
    try:
        started = time.perf_counter()
        end = started + WARM_SECONDS + SECONDS
        due = started + rng.expovariate(rate)
        while busy or due < end:
            now = time.perf_counter()
            while due <= now and due < end and idle:
                idle[-1].ask(request, due)
                busy.add(idle.pop())
                sent += 1
                if not warm and due > started + WARM_SECONDS:
                    warm = len(latencies)
                due += rng.expovariate(rate)
            # If all connections are busy, the next request waits, and its latency includes the wait.
            wait = max(0.0, due - time.perf_counter()) if idle and due < end else _PATIENCE_SECONDS
            ready = select.select(busy, (), (), wait)[0]
            if not ready and wait == _PATIENCE_SECONDS:
                raise RuntimeError(f"no answer within {wait:g} s")
            for connection in ready:
                if connection.answered():
                    latencies.append(time.perf_counter() - connection.due)
                    busy.remove(connection)
                    idle.append(connection)
    except (RuntimeError, OSError) as error:
        raise RuntimeError(f"{url}: {error}") from error
    finally:
        for connection in every:
            connection.close()
    return latencies, warm, sent


def _request(host: str) -> bytes:
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {KEY}\r\ncontent-length: {len(PLAIN)}\r\n\r\n"
    )
    return head.encode() + PLAIN
