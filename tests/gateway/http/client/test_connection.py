"""Answers as servers really send them, and as they should not."""

from __future__ import annotations

import asyncio

import pytest

from gateway.http.client import Broken, TimedOut
from gateway.http.client.connection import BUFFER_BYTES, HEAD_BYTES
from tests.gateway import virtual_time
from tests.gateway.http.client.conftest import (
    Reader,
    Writer,
    client,
    first,
    reply_with,
    request,
    serving,
    whole,
)

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (OK + b"content-length: 5\r\n\r\nhello", b"hello"),
        (OK + b"Content-Length: 0\r\n\r\n", b""),
        (CHUNKED + b"5\r\nhello\r\n1;ext=1\r\n!\r\n0\r\nx-trailer: 1\r\n\r\n", b"hello!"),
        (b"HTTP/1.1 102 Processing\r\n\r\n" + OK + b"content-length: 2\r\n\r\nok", b"ok"),
    ],
)
@pytest.mark.parametrize("step", [1, 7, 1000])
def test_an_answer_in_pieces_of_any_size(answer: bytes, body: bytes, step: int) -> None:
    pieces = [answer[at : at + step] for at in range(0, len(answer), step)]
    assert virtual_time.run(first(reply_with(*pieces))) == (200, body)


def test_an_answer_that_ends_with_its_connection() -> None:
    assert virtual_time.run(first(reply_with(OK + b"\r\nto the ", b"end", then="ends"))) == (
        200,
        b"to the end",
    )


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"content-length: 50\r\n\r\nnot all of it",
        CHUNKED + b"5\r\nhello\r\n",
        CHUNKED + b"5\r\nhel",
        OK[:9],
        b"",
    ],
)
@pytest.mark.parametrize("then", ["ends", "breaks"])
def test_an_answer_that_breaks_off(answer: bytes, then: str) -> None:
    with pytest.raises(Broken):
        virtual_time.run(first(reply_with(answer, then=then)))


def test_what_came_before_a_break_is_read() -> None:
    async def work() -> bytes:
        async with serving(reply_with(CHUNKED + b"5\r\nhello\r\n", then="breaks")) as url, client() as one:
            connection = await one.post(url, b"{}", {}, silence=5)
            await asyncio.sleep(0.1)
            seen = await connection.read()
            with pytest.raises(Broken, match="within an answer"):
                await connection.read()
            one.release(connection)
            return seen

    assert virtual_time.run(work()) == b"hello"


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 two hundred\r\n\r\n",
        CHUNKED + b"zz\r\nhello\r\n",
        OK + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        OK + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\nhello",
        OK + b"x-long: " + b"x" * HEAD_BYTES * 2,
    ],
)
def test_what_is_not_http_is_broken(answer: bytes) -> None:
    with pytest.raises(Broken):
        virtual_time.run(first(reply_with(answer)))


def test_silence_before_and_within_an_answer() -> None:
    async def work() -> None:
        for pieces in ([], [CHUNKED + b"5\r\nhello\r\n"]):
            with pytest.raises(TimedOut, match=r"nothing for 0\.2 s"):
                await first(reply_with(*pieces), silence=0.2)

    virtual_time.run(work())


def test_silence_is_no_end_of_an_answer_without_a_length() -> None:
    async def work() -> None:
        with pytest.raises(TimedOut):
            await first(reply_with(OK + b"\r\nhalf of it"), silence=0.2)

    virtual_time.run(work())


def test_an_answer_of_another_encoding_ends_with_its_connection() -> None:
    answer = OK + b"transfer-encoding: identity\r\n\r\nabc"
    assert virtual_time.run(first(reply_with(answer, then="ends"))) == (200, b"abc")


def test_trailers_have_an_end() -> None:
    trailers = b"x-trailer: y\r\n" * (HEAD_BYTES // 8)
    with pytest.raises(Broken):
        virtual_time.run(first(reply_with(CHUNKED + b"1\r\nx\r\n0\r\n" + trailers)))


def test_an_answer_that_comes_slowly_is_not_silence() -> None:
    pieces = [CHUNKED, *[b"1\r\nx\r\n"] * 8, b"0\r\n\r\n"]
    assert virtual_time.run(first(reply_with(*pieces, pause=0.1), silence=0.4)) == (200, b"x" * 8)


def test_a_server_is_made_to_wait_for_a_reader_that_does_not_read() -> None:
    sent = 0

    async def floods(reader: Reader, writer: Writer) -> None:
        nonlocal sent
        await request(reader)
        writer.write(OK + b"content-length: %d\r\n\r\n" % (64 << 20))
        for _ in range(1024):
            writer.write(b"x" * (64 << 10))
            await writer.drain()
            sent += 64 << 10
        await reader.read()

    async def work() -> None:
        async with serving(floods) as url, client() as one:
            connection = await one.post(url, b"{}", {}, silence=0.3)
            # In virtual time, longer than the silence that is borne: the server is not silent.
            await asyncio.sleep(0.8)
            stopped = sent
            assert BUFFER_BYTES < stopped < 32 << 20
            await asyncio.sleep(0.1)
            assert sent == stopped
            assert len(await whole(connection)) == 64 << 20
            one.release(connection)

    virtual_time.run(work())
