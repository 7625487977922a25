"""Which connection a request goes over, and which are cut."""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref
from typing import Any

import pytest

from gateway.http.client import Broken, Connection, HttpClient, Refused, TimedOut
from gateway.http.client import client as module
from tests.conftest import free_port
from tests.gateway import virtual_time
from tests.gateway.http.client.conftest import Reader, Writer, ask, client, reply_with, request, serving

LENGTH = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n%b\r\n%b"


class Echo:
    """Answers with the body it was sent; `requests` by connection."""

    def __init__(self, extra: bytes = b"", *, after: bytes = b"") -> None:
        self.requests: list[int] = []
        self.heads: list[str] = []
        self._extra, self._after = extra, after

    async def __call__(self, reader: Reader, writer: Writer) -> None:
        number = len(self.requests)
        self.requests.append(0)
        while True:
            head, body = await request(reader)
            self.requests[number] += 1
            self.heads.append(head)
            writer.write(LENGTH % (len(body), self._extra, body) + self._after)
            await writer.drain()


def test_a_connection_is_used_again() -> None:
    async def work() -> list[int]:
        echo = Echo()
        async with serving(echo) as url, client() as one:
            for number in range(5):
                assert await ask(one, url, b"%d" % number) == (200, b"%d" % number)
        return echo.requests

    assert asyncio.run(work()) == [5]


def test_many_at_once_each_get_their_own_answer() -> None:
    async def work() -> None:
        echo = Echo()
        async with serving(echo) as url, client() as one:
            for _ in range(3):
                bodies = [b"%d" % number * (number * 50) for number in range(1, 60)]
                answers = await asyncio.gather(*(ask(one, url, body) for body in bodies))
                assert [answer for _, answer in answers] == bodies
            assert len(echo.requests) <= 59

    asyncio.run(work())


@pytest.mark.parametrize(
    "echo",
    [
        Echo(b"connection: close\r\n"),
        Echo(after=b"HTTP/1.1 200 OK\r\n"),
        Echo(after=LENGTH % (3, b"", b"two")),
    ],
)
def test_a_connection_that_is_not_clean_is_not_used_again(echo: Echo) -> None:
    """Above all a connection with unread bytes: they would answer another request."""

    async def work() -> list[int]:
        async with serving(echo) as url, client() as one:
            for number in range(3):
                assert await ask(one, url, b"%d" % number) == (200, b"%d" % number)
                await asyncio.sleep(0.02)
        return echo.requests

    assert virtual_time.run(work()) == [1, 1, 1]


def test_what_a_server_says_unasked_ends_an_idle_connection() -> None:
    async def chatty(reader: Reader, writer: Writer) -> None:
        _, body = await request(reader)
        writer.write(LENGTH % (len(body), b"", body))
        await asyncio.sleep(0.05)
        writer.write(LENGTH % (6, b"", b"poison"))
        await reader.read()

    async def work() -> None:
        async with serving(chatty) as url, client() as one:
            assert await ask(one, url, b"first") == (200, b"first")
            await asyncio.sleep(0.15)
            assert await ask(one, url, b"second") == (200, b"second")

    virtual_time.run(work())


def test_an_answer_that_was_not_read_cuts_its_connection() -> None:
    gone = asyncio.Event()

    async def endless(reader: Reader, writer: Writer) -> None:
        await request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n")
        try:
            await reader.read()
        finally:
            gone.set()

    async def work() -> None:
        async with serving(endless) as url, client() as one:
            connection = await one.post(url, b"{}", {}, silence=5)
            assert await connection.read() == b"x"
            one.release(connection)
            await asyncio.wait_for(gone.wait(), 5)

    asyncio.run(work())


def test_a_cancelled_request_cuts_its_connection() -> None:
    gone = asyncio.Event()

    async def silent(reader: Reader, writer: Writer) -> None:
        await request(reader)
        await reader.read()
        gone.set()

    async def work() -> None:
        async with serving(silent) as url, client() as one:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await one.post(url, b"{}", {}, silence=60)
            await asyncio.wait_for(gone.wait(), 5)

    asyncio.run(work())


def test_idle_connections_are_ended_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEEP_SECONDS", 0.2)

    async def work() -> list[int]:
        echo = Echo()
        async with serving(echo) as url, client() as one:
            await ask(one, url)
            # In virtual time.
            await asyncio.sleep(0.5)
            assert not one._idle
            await ask(one, url)
        return echo.requests

    assert virtual_time.run(work()) == [1, 1]


def test_a_server_that_ended_an_idle_connection_costs_no_request() -> None:
    async def once(reader: Reader, writer: Writer) -> None:
        _, body = await request(reader)
        writer.write(LENGTH % (len(body), b"", body))

    async def work() -> None:
        async with serving(once) as url, client() as one:
            for _ in range(3):
                assert await ask(one, url, b"hello") == (200, b"hello")
                await asyncio.sleep(0.05)

    virtual_time.run(work())


def test_nobody_listens() -> None:
    async def work() -> None:
        async with client() as one:
            for url in (
                f"http://127.0.0.1:{free_port()}/",
                f"http://[::1]:{free_port()}/",
                "http://no.invalid/",
            ):
                with pytest.raises(Refused):
                    await ask(one, url)

    asyncio.run(work())


def test_a_host_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONNECT_SECONDS", 0.3)
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.create_connection(full.getsockname())]
        for _ in range(4):
            another = socket.socket()
            another.setblocking(False)
            another.connect_ex(full.getsockname())
            waiting.append(another)

        async def work() -> None:
            async with client() as one:
                with pytest.raises(Refused):
                    await ask(one, f"http://127.0.0.1:{full.getsockname()[1]}/")

        asyncio.run(work())
        for each in waiting:
            each.close()


def test_a_name_with_an_address_that_is_dead_leads_to_the_one_that_lives() -> None:
    """`localhost` is ::1 too, where no server listens."""

    async def work() -> None:
        async with serving(Echo()) as url, client() as one:
            assert await ask(one, url.replace("127.0.0.1", "localhost"), b"found") == (200, b"found")

    asyncio.run(work())


def test_the_request_as_it_is_sent() -> None:
    async def work() -> list[str]:
        echo = Echo()
        async with serving(echo) as url, client() as one:
            connection = await one.post(url + "?a=%20b", b"12345", {"x-request-id": "r1"}, silence=5)
            assert await connection.read() == b"12345"
            one.release(connection)
            place = url.removeprefix("http://").partition("/")[0]
        return [head.replace(place, "HOST") for head in echo.heads]

    assert asyncio.run(work()) == [
        "POST /v1/chat?a=%20b HTTP/1.1\r\nhost: HOST\r\nx-request-id: r1\r\ncontent-length: 5\r\n\r\n"
    ]


@pytest.mark.parametrize("value", ["a\r\nx-admin: 1", "a\nb", "a\rb"])
def test_a_header_with_a_line_break_is_not_sent(value: str) -> None:
    async def work() -> None:
        async with client() as one:
            with pytest.raises(ValueError, match="line break"):
                await one.post("http://127.0.0.1:1/", b"", {"x-name": value}, silence=1)
            with pytest.raises(ValueError, match="line break"):
                await one.post("http://127.0.0.1:1/", b"", {value: "x"}, silence=1)

    asyncio.run(work())


@pytest.mark.parametrize(
    "url",
    ["ftp://host/", "http:///path", "http://host/a b", "host/path", "http://host:80800/", "http://a..b/"],
)
def test_a_url_that_cannot_be_asked(url: str) -> None:
    """Another copy is tried, and this one cools down."""
    with pytest.raises(Refused):
        asyncio.run(HttpClient().post(url, b"", {}, silence=1))


def test_many_who_ask_at_once_share_a_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONNECT_SECONDS", 60)

    async def work() -> int:
        loop, look_ups = asyncio.get_running_loop(), 0
        real = loop.getaddrinfo

        async def slow(*arguments: Any, **options: Any) -> Any:
            nonlocal look_ups
            look_ups += 1
            await asyncio.sleep(0.1)
            return await real(*arguments, **options)

        monkeypatch.setattr(loop, "getaddrinfo", slow)
        async with serving(Echo()) as url, client() as one:
            name = url.replace("127.0.0.1", "localhost")
            answers = await asyncio.gather(*(ask(one, name, b"%d" % number) for number in range(40)))
            assert [answer for _, answer in answers] == [b"%d" % number for number in range(40)]
        return look_ups

    assert asyncio.run(work()) == 1


def test_nothing_is_left_of_an_ended_connection_that_was_frozen() -> None:
    async def work() -> list[weakref.ref[Connection]]:
        seen = []
        async with serving(Echo()) as url, client() as one:
            connections = [await one.post(url, b"x", {}, silence=5) for _ in range(5)]
            gc.freeze()
            for connection in connections:
                seen.append(weakref.ref(connection))
                one.release(connection)
            del connection, connections
        await asyncio.sleep(0.05)
        return seen

    try:
        left = virtual_time.run(work())
        gc.collect()
        assert [one() for one in left] == [None] * 5
    finally:
        gc.unfreeze()


def test_a_timeout_leaves_nothing_behind() -> None:
    async def work() -> None:
        async with serving(reply_with()) as url, client() as one:
            for _ in range(3):
                with pytest.raises(TimedOut):
                    await ask(one, url, silence=0.05)
            assert not one._idle

    virtual_time.run(work())


def test_an_early_refusal_is_read_although_the_body_is_not_taken() -> None:
    async def refuses(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\nconnection: close\r\n\r\nbig")
        await writer.drain()
        # In virtual time: the client is not cut off before it has read.
        await asyncio.sleep(0.2)

    async def work() -> None:
        async with serving(refuses) as url, client() as one:
            try:
                assert await ask(one, url, b"x" * (32 << 20)) == (413, b"big")
            except Broken:
                pytest.fail("the answer was there to be read")

    virtual_time.run(work())
