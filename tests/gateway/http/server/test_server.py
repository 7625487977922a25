"""The server as a whole: how many it lets in, how it starts, and how it stops."""

from __future__ import annotations

import asyncio
import socket

import pytest

from gateway.http.server import Limits, Server, StartFailed, bind
from gateway.http.server.exchange import Message, Receive, Send
from tests.gateway.http.server.conftest import GET, bodies, echo, living, run, run_virtually, serving


def test_more_connections_than_are_let_in_wait() -> None:
    async def test() -> None:
        async with serving(echo, connections=3) as served:
            open_ones = [await served.connect() for _ in range(3)]
            for reader, writer in open_ones:
                writer.write(GET)
                assert await reader.readuntil(b"GET / ")
            waiting, writer = await served.connect()
            writer.write(GET)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(waiting.readuntil(b"GET / "), 10)
            open_ones[0][1].close()
            waited = await waiting.readuntil(b"GET / ")
            assert waited.startswith(b"HTTP/1.1 200 OK")
            for _, other in [*open_ones, (waiting, writer)]:
                other.close()

    run_virtually(test())


def test_idle_connections_and_slow_heads_have_a_time() -> None:
    async def test() -> None:
        async with serving(echo, head_seconds=30) as served:
            clock = asyncio.get_running_loop().time
            started = clock()
            slow = [GET[at : at + 1] for at in range(len(GET))]
            dripped = asyncio.ensure_future(drip(served.port, slow))
            idle, used = await served.exchange(), await served.exchange(GET)
            assert (idle, len(bodies(used))) == (b"", 1)
            assert 30 <= clock() - started <= 61
            assert (await dripped).startswith(b"HTTP/1.1 408 Request Timeout\r\n")

    run_virtually(test())


async def drip(port: int, pieces: list[bytes]) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = asyncio.ensure_future(reader.read())
    for piece in pieces:
        if answer.done():
            break
        writer.write(piece)
        # In virtual time: the head is whole long after its time is over.
        await asyncio.sleep(5)
    writer.close()
    return await answer


def test_a_stop_ends_what_is_idle_and_waits_for_answers() -> None:
    went_on = asyncio.Event()

    async def waits(scope: Message, receive: Receive, send: Send) -> None:
        await went_on.wait()
        await echo(scope, receive, send)

    async def test() -> None:
        async with serving(waits) as served:
            busy, idle, half = [await served.connect() for _ in range(3)]
            busy[1].write(GET + GET)
            half[1].write(GET[:-2])
            await asyncio.sleep(0.1)
            served.server.stop()
            for reader, _ in (idle, half):
                assert await reader.read() == b""
            with pytest.raises(ConnectionError):
                await served.connect()
            assert not served.run.done()
            went_on.set()
            answer = await busy[0].read()
            # The second request was not begun: its client may send it elsewhere.
            assert bodies(answer) == [b"GET / "]
            assert b"connection: close" in answer
            await served.run
            for _, writer in (busy, idle, half):
                writer.close()

    run_virtually(test())


def test_an_application_that_ends_first_cuts_what_is_left() -> None:
    cut = asyncio.Event()

    async def ends(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await cut.wait()
            return
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await cut.wait()

    async def test() -> None:
        [listener] = bind("127.0.0.1", 0, 1)
        server = Server(ends, listener, Limits(), on_stop=cut.set)
        running = asyncio.ensure_future(server.run())
        await asyncio.sleep(0.05)
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.getsockname()[1])
        writer.write(GET)
        await asyncio.sleep(0.05)
        server.stop()
        await running
        assert b" 200 " not in await reader.read()
        writer.close()

    run_virtually(test())


def test_nobody_is_let_in_before_the_start_and_a_failed_one_is_told() -> None:
    async def fails(scope: Message, receive: Receive, send: Send) -> None:
        await receive()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=1)
        await send({"type": "lifespan.startup.failed", "message": "no disk"})

    async def breaks(scope: Message, receive: Receive, send: Send) -> None:
        raise OSError("no start")

    [listener] = bind("127.0.0.1", 0, 1)
    port = listener.getsockname()[1]

    async def test() -> None:
        with pytest.raises(StartFailed, match="no disk"):
            await Server(fails, listener, Limits(), on_stop=lambda: None).run()
        with pytest.raises(OSError, match="no start"):
            await Server(breaks, listener, Limits(), on_stop=lambda: None).run()

    run(test())
    listener.close()


def test_what_the_application_learns_of_a_request() -> None:
    scopes: list[Message] = []

    async def notes(scope: Message, receive: Receive, send: Send) -> None:
        scopes.append(scope)
        await echo(scope, receive, send)

    async def test() -> None:
        async with serving(notes) as served:
            reader, writer = await served.connect()
            own = writer.get_extra_info("sockname")
            writer.write(b"GET /a%20b?c=d HTTP/1.1\r\nHost: x\r\nX-B: C\r\n\r\n")
            await reader.readuntil(b"GET /a b ")
            writer.close()
            [scope] = scopes
            assert scope["client"] == own
            assert scope["server"] == ("127.0.0.1", served.port)
            assert scope["headers"] == [(b"host", b"x"), (b"x-b", b"C")]
            assert (scope["scheme"], scope["http_version"], scope["query_string"]) == ("http", "1.1", b"c=d")

    run(test())


def test_living_is_all_that_an_application_without_state_needs() -> None:
    async def test() -> None:
        [listener] = bind("127.0.0.1", 0, 1)
        server = Server(living(echo), listener, Limits(), on_stop=lambda: None)
        running = asyncio.ensure_future(server.run())
        await asyncio.sleep(0.01)
        server.stop()
        await running

    run_virtually(test())
