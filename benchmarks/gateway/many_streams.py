"""5,000 streams open at once, an event a second each: memory, and the longest wait between two events."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast
from urllib.parse import urlsplit

import uvloop

from benchmarks.figure import Figure
from benchmarks.gateway.targets import KEY, Target, disk, gateway, serve

STREAMS: Final = 5_000
EVENTS: Final = 45
RAMP_SECONDS: Final = 15.0
GOAL_MIB: Final = 600.0
STALL_SECONDS: Final = 3.0
"""Between two events of a stream that come a second apart."""


def figures() -> Iterator[Figure]:
    """Starts a slow backend and a gateway before it, and holds the streams for half a minute."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=disk())))
        backend = serve(stack, "benchmarks.slow_upstream", "--events", str(EVENTS))
        target = gateway(stack, folder, backend.url)
        before = target.resident_mib()
        streams, peak = uvloop.run(_run(target))
    gaps = sorted(stream.longest for stream in streams)
    whole = sum(stream.done for stream in streams)
    stalled = sum(gap > STALL_SECONDS for gap in gaps)
    note = f"{STREAMS} streams of {EVENTS} events, one a second, {whole} whole"
    yield Figure(
        "gateway",
        "memory with 5,000 streams",
        round(peak, 1),
        "MiB",
        goal=GOAL_MIB,
        met=peak < GOAL_MIB and whole == STREAMS,
        note=f"below the goal; proportional set of all its processes, {before:.0f} MiB before; {note}",
    )
    yield Figure(
        "gateway",
        "streams stalled",
        stalled,
        "streams",
        goal=0,
        met=not stalled and whole == STREAMS,
        note=f"{note}; longest wait between two events of a stream: median {statistics.median(gaps):.2f} s, "
        f"longest {gaps[-1]:.2f} s; above {STALL_SECONDS:g} s counts as stalled",
    )


class _Stream(asyncio.Protocol):
    """One client. `longest` is the longest wait for the next event, `done` whether its end came."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._last = 0.0
        self._tail = b""
        self.longest, self.done = 0.0, False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def close(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if self._last:
            self.longest = max(self.longest, now - self._last)
        self._last = now
        self._tail = (self._tail + data)[-64:]
        self.done = self.done or b"[DONE]" in self._tail


async def _run(target: Target) -> tuple[list[_Stream], float]:
    parts = urlsplit(target.url)
    messages = [{"role": "user", "content": "x"}]
    body = json.dumps({"model": "base", "messages": messages, "stream": True}).encode()
    request = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {KEY}\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode() + body
    loop = asyncio.get_running_loop()
    host, port = parts.hostname or "", parts.port or 80
    streams: list[_Stream] = []
    started, peak = time.perf_counter(), 0.0
    for number in range(STREAMS):
        await asyncio.sleep(max(0.0, started + RAMP_SECONDS * number / STREAMS - time.perf_counter()))
        _, stream = await loop.create_connection(lambda: _Stream(request), host, port)
        streams.append(stream)
    for _ in range(EVENTS * 3):
        peak = max(peak, await asyncio.to_thread(target.resident_mib))
        if all(stream.done for stream in streams):
            break
        await asyncio.sleep(1)
    for stream in streams:
        stream.close()
    await asyncio.sleep(0)
    return streams, peak
