"""Servers that say exactly the bytes they are given, and a client that notes its connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from gateway.http.client import Connection, HttpClient

Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter
Serve = Callable[[Reader, Writer], Awaitable[None]]
SILENCE = 5.0


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[str]:
    """URL of a server that does `serve` on each connection."""
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: Reader, writer: Writer) -> None:
        if (task := asyncio.current_task()) is not None:
            tasks.add(task)
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/chat"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def request(reader: Reader) -> tuple[str, bytes]:
    """The head and the body of a request."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    (size,) = [int(line.split(":")[1]) for line in head.split("\r\n") if line.startswith("content-length:")]
    return head, await reader.readexactly(size)


def reply_with(*pieces: bytes, then: str = "stays", pause: float = 0.0) -> Serve:
    """Answers the first request with `pieces`, and `stays`, `ends` or `breaks` then."""

    async def serve(reader: Reader, writer: Writer) -> None:
        await request(reader)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)
        if then == "breaks":
            writer.transport.abort()
        elif then == "stays":
            await reader.read()

    return serve


@asynccontextmanager
async def client() -> AsyncIterator[HttpClient]:
    one = HttpClient()
    try:
        yield one
    finally:
        await one.close()


async def whole(connection: Connection) -> bytes:
    parts = []
    while part := await connection.read():
        parts.append(part)
    return b"".join(parts)


async def ask(
    one: HttpClient, url: str, body: bytes = b"{}", *, silence: float = SILENCE
) -> tuple[int, bytes]:
    """Status and body of one exchange."""
    connection = await one.post(url, body, {"content-type": "application/json"}, silence=silence)
    try:
        return connection.status, await whole(connection)
    finally:
        one.release(connection)


async def first(serve: Serve, *, silence: float = SILENCE) -> tuple[int, bytes]:
    """Return the first answer that a fresh client gets from a server that runs `serve`."""
    async with serving(serve) as url, client() as one:
        return await ask(one, url, silence=silence)
