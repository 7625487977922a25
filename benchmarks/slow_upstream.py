"""A backend whose streams bring an event a second, in as little CPU time as can be.

`python -m benchmarks.slow_upstream --port N --events M`: all streams are written to by one timer each second,
an equal part of them every 20 ms.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Final, cast

import uvloop

from benchmarks.instant_upstream import event_bytes

_SLICES: Final = 50
_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class SlowUpstream(asyncio.Protocol):
    """Begins a stream for every request; its connection serves one."""

    def __init__(self, slices: list[set[SlowUpstream]], events: list[bytes]) -> None:
        self._slices, self._events = slices, events
        self._next = 0
        self._data = b""
        self._slice: set[SlowUpstream] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        if self._slice is None and b"\r\n\r\n" in self._data:
            self._slice = min(self._slices, key=len)
            self._slice.add(self)
            self._transport.write(_HEAD)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._slice is not None:
            self._slice.discard(self)

    def tick(self) -> None:
        """Sends the next event."""
        event = self._events[self._next]
        self._next += 1
        self._transport.write(b"%x\r\n%b\r\n" % (len(event), event))
        if self._next == len(self._events) and self._slice is not None:
            self._slice.discard(self)
            self._transport.write(b"0\r\n\r\n")


async def _serve(port: int, count: int) -> None:
    every = [event + b"\n\n" for event in event_bytes().split(b"\n\n") if event]
    # The last token events, then usage and [DONE] at once.
    tokens, end = every[:-2], b"".join(every[-2:])
    events = [*(tokens[number % len(tokens)] for number in range(count - 1)), end]
    slices: list[set[SlowUpstream]] = [set() for _ in range(_SLICES)]
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: SlowUpstream(slices, events), "127.0.0.1", port, backlog=4096)
    async with server:
        due = loop.time()
        while True:
            for part in slices:
                for stream in list(part):
                    stream.tick()
                due += 1 / _SLICES
                await asyncio.sleep(max(0.0, due - loop.time()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--events", type=int, required=True)
    arguments = parser.parse_args()
    uvloop.run(_serve(arguments.port, arguments.events))


if __name__ == "__main__":
    main()
