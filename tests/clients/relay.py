"""A relay between a client and the gateway that passes bytes on and notes each request."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

_HEAD: Final = re.compile(
    rb"(?:GET|POST) (\S+) HTTP/1\.1\r\n(?:.+\r\n)*?authorization: Bearer (\S+)\r\n", re.I
)


@dataclass(slots=True)
class Relay:
    """Requests that passed the relay: (path, key, monotonic time) of each, in order."""

    url: str
    requests: list[tuple[str, str, float]] = field(default_factory=list)

    def times(self, key: str) -> list[float]:
        """Return the times at which requests with this key passed."""
        return [at for _, given, at in self.requests if given == key]

    def note(self, block: bytes) -> None:
        """Notes the requests that begin in a block. A client sends a request's head in one piece."""
        for match in _HEAD.finditer(block):
            self.requests.append((match[1].decode(), match[2].decode(), time.monotonic()))


@contextlib.contextmanager
def relayed(port: int) -> Iterator[Relay]:
    """A relay to the gateway on `port`, on a thread and a port of its own."""
    started: queue.Queue[tuple[Relay, asyncio.AbstractEventLoop, asyncio.Event]] = queue.Queue()

    async def serve() -> None:
        stop = asyncio.Event()

        async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            back, forth = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(_pump(reader, forth, relay.note), _pump(back, writer, _ignore))

        async with await asyncio.start_server(connect, "127.0.0.1", 0) as server:
            relay = Relay(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
            started.put((relay, asyncio.get_running_loop(), stop))
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    relay, loop, stop = started.get(timeout=30)
    try:
        yield relay
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)


async def _pump(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, note: Callable[[bytes], None]
) -> None:
    try:
        while block := await source.read(1 << 16):
            note(block)
            sink.write(block)
            await sink.drain()
    except OSError:
        pass  # the close below ends the other side's connection
    finally:
        sink.close()


def _ignore(block: bytes) -> None:
    """Answers are not noted."""
