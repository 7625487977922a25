"""A server in the test's own event loop, and clients that say exactly the bytes they are given."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httptools
import uvloop

from gateway.http.server import Limits, Server, bind
from gateway.http.server.exchange import Application, Message, Receive, Send
from tests.gateway import virtual_time

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


def run_virtually(test: Coroutine[Any, Any, None]) -> None:
    """In virtual time, for tests that wait for a timeout of the server."""

    async def closed() -> None:
        await asyncio.wait_for(test, 600)
        # Transports close in the turns of the loop that follow, in virtual time.
        await asyncio.sleep(60)

    virtual_time.run(closed())


def run(test: Coroutine[Any, Any, None]) -> None:
    """On the event loop that serves in production, within a time."""

    async def bounded() -> None:
        await asyncio.wait_for(test, 60)

    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        uvloop.run(bounded())
    finally:
        # uvloop leaves its own behind, which hears nothing any more.
        for number, handler in kept.items():
            signal.signal(number, handler)


@dataclass(slots=True)
class Served:
    server: Server
    port: int
    run: asyncio.Task[None]

    async def connect(self, *, buffer: int = 0) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """`buffer`: bytes that the client's kernel takes unread; 0 for as many as it likes."""
        client = socket.socket()
        if buffer:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        client.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", self.port))
        except OSError:
            client.close()
            raise
        return await asyncio.open_connection(sock=client, limit=max(1024, buffer))

    async def exchange(self, *pieces: bytes) -> bytes:
        """Send `pieces` one after another; return the server's bytes up to its close."""
        reader, writer = await self.connect()
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.002)
            return await reader.read()
        finally:
            writer.close()


async def echo(scope: Message, receive: Receive, send: Send) -> None:
    """Answers with method, path and body."""
    if (body := await read_body(receive)) is None:
        return
    told = b"%b %b %b" % (scope["method"].encode(), scope["path"].encode(), body)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": told, "more_body": False})


async def read_body(receive: Receive) -> bytes | None:
    """Return a request's body, or None once the client has gone."""
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message["body"]
        if not message["more_body"]:
            return bytes(body)


def living(application: Application) -> Application:
    """The application with a lifespan that holds nothing."""

    async def lives(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await application(scope, receive, send)
            return
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    return lives


@asynccontextmanager
async def serving(application: Application, **limits: Any) -> AsyncIterator[Served]:
    """A server that has started, and is stopped then."""
    [listener] = bind("127.0.0.1", 0, 1)
    server = Server(living(application), listener, Limits(**limits), on_stop=lambda: None)
    running = asyncio.ensure_future(server.run())
    served = Served(server, listener.getsockname()[1], running)
    while not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        await asyncio.sleep(0.001)
        if running.done():
            running.result()
    try:
        yield served
    finally:
        server.stop()
        await running


@dataclass(slots=True)
class Answers:
    """Whole answers as another parser reads them: (status, headers, body) of each."""

    done: list[tuple[int, dict[bytes, bytes], bytes]] = field(default_factory=list)
    _headers: dict[bytes, bytes] = field(default_factory=dict)
    _body: bytes = b""
    _parser: Any = None

    def read(self, data: bytes) -> list[tuple[int, dict[bytes, bytes], bytes]]:
        self._parser = httptools.HttpResponseParser(self)
        self._parser.feed_data(data)
        return self.done

    def on_message_begin(self) -> None:
        self._headers, self._body = {}, b""

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name] = value

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self.done.append((self._parser.get_status_code(), self._headers, self._body))


def bodies(data: bytes) -> list[bytes]:
    """Return the bodies of the answers in `data`."""
    return [body for _, _, body in Answers().read(data)]
