"""Requests on one connection, as a client meets them: in order, whole, and with nothing left over."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.http.server.exchange import Message, Receive, Send
from gateway.http.server.limits import BUFFER_BYTES, LINGER_SECONDS
from tests.gateway.http.server.conftest import GET, Answers, bodies, echo, run, run_virtually, serving

LAST = b"GET /last HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
POSTS = (
    b"POST /1 HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello"
    b"POST /2 HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\nwo\r\n3\r\nrld\r\n0\r\n\r\n"
    b"\r\nPOST /3 HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n" + LAST
)
START: Message = {"type": "http.response.start", "status": 200, "headers": []}


def part(body: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def whole_body(receive: Receive) -> int:
    size = 0
    while True:
        message = await receive()
        size += len(message.get("body", b""))
        if not message.get("more_body"):
            return size


def test_requests_sent_ahead_are_answered_in_order_however_they_are_cut() -> None:
    async def test() -> None:
        async with serving(echo) as served:
            expected = [b"POST /1 hello", b"POST /2 world", b"POST /3 ", b"GET /last "]
            assert bodies(await served.exchange(POSTS)) == expected
            both = [served.exchange(POSTS[:at], POSTS[at:]) for at in range(1, len(POSTS))]
            for answer in await asyncio.gather(*both):
                assert bodies(answer) == expected
            assert (
                bodies(await served.exchange(*(POSTS[at : at + 1] for at in range(len(POSTS))))) == expected
            )

    run(test())


def test_a_slow_answer_keeps_its_place() -> None:
    async def slow_first(scope: Message, receive: Receive, send: Send) -> None:
        if scope["path"] == "/1":
            await asyncio.sleep(0.1)
        await echo(scope, receive, send)

    async def test() -> None:
        async with serving(slow_first) as served:
            assert [body[:7] for body in bodies(await served.exchange(POSTS))] == [
                b"POST /1",
                b"POST /2",
                b"POST /3",
                b"GET /la",
            ]

    run(test())


def test_an_answer_in_parts() -> None:
    async def parts(scope: Message, receive: Receive, send: Send) -> None:
        await send({**START, "headers": [(b"x-a", b"b")]})
        for body in (b"one", b"", b"two"):
            await send(part(body, more=True))
        await send(part(b"three" if scope["path"] == "/" else b"", more=False))

    async def test() -> None:
        async with serving(parts) as served:
            modern = await served.exchange(GET + LAST)
            [one, two] = Answers().read(modern)
            assert (one[2], two[2]) == (b"onetwothree", b"onetwo")
            assert (one[1][b"x-a"], one[1][b"transfer-encoding"]) == (b"b", b"chunked")
            assert b"connection" not in one[1]
            assert two[1][b"connection"] == b"close"
            # HTTP/1.0 knows no chunks: the end of the connection is the end.
            old = await served.exchange(b"GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n" + GET)
            head, _, body = old.partition(b"\r\n\r\n")
            assert body == b"onetwothree"
            assert b"connection: close" in head
            assert b"transfer-encoding" not in head

    run(test())


def test_old_clients_may_keep_their_connection() -> None:
    async def test() -> None:
        async with serving(echo) as served:
            old = b"GET /old HTTP/1.0\r\nconnection: keep-alive\r\n\r\n"
            [one, two] = Answers().read(await served.exchange(old + b"GET /end HTTP/1.0\r\n\r\n"))
            assert (one[1][b"connection"], one[2]) == (b"keep-alive", b"GET /old ")
            assert (two[1][b"connection"], two[2]) == (b"close", b"GET /end ")

    run(test())


@pytest.mark.parametrize(("method", "status"), [(b"HEAD", 200), (b"GET", 204), (b"GET", 304)])
def test_answers_without_a_body(method: bytes, status: int) -> None:
    async def answers(scope: Message, receive: Receive, send: Send) -> None:
        await send({**START, "status": status if scope["path"] == "/" else 200})
        await send(part(b"body", more=scope["path"] == "/more"))
        if scope["path"] == "/more":
            await send(part(b"", more=False))

    async def test() -> None:
        async with serving(answers) as served:
            first = GET.replace(b"GET", method)
            answer = await served.exchange(first + LAST)
            assert answer.count(b"body") == 1
            assert (b"content-length: 4" in answer.partition(b"\r\n\r\n")[0]) is (status == 200)
            if method == b"HEAD":
                answer = await served.exchange(first.replace(b" /", b" /more") + LAST)
                assert answer.count(b"body") == 1

    run(test())


@pytest.mark.parametrize(
    ("method", "more", "lengths"),
    [(b"GET", False, [4]), (b"GET", True, []), (b"HEAD", False, [9]), (b"HEAD", True, [9])],
)
def test_an_answer_has_one_content_length(method: bytes, more: bool, lengths: list[int]) -> None:
    """Django writes one itself. Clients refuse an answer with two, or with one and chunked encoding."""

    async def answers(scope: Message, receive: Receive, send: Send) -> None:
        await send({**START, "headers": [(b"Content-Length", b"9")]})
        await send(part(b"body", more=more))
        if more:
            await send(part(b"", more=False))

    async def test() -> None:
        async with serving(answers) as served:
            answer = await served.exchange(LAST.replace(b"GET", method))
            head = answer.lower().partition(b"\r\n\r\n")[0].split(b"\r\n")
            found = [line for line in head if line.startswith(b"content-length:")]
            assert found == [b"content-length: %d" % length for length in lengths]
            assert (b"transfer-encoding: chunked" in head) is (more and not lengths)

    run(test())


def test_leave_to_send_a_body_is_given_when_it_is_read() -> None:
    head = b"POST %b HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n"

    async def may_refuse(scope: Message, receive: Receive, send: Send) -> None:
        if scope["path"] == "/no":
            await send({**START, "status": 401})
            await send(part(b"", more=False))
        else:
            await echo(scope, receive, send)

    async def test() -> None:
        async with serving(may_refuse) as served:
            reader, writer = await served.connect()
            writer.write(head % b"/yes")
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"ab" + head % b"/no")
            rest = await reader.read()
            assert rest.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"\r\n\r\nPOST /yes abHTTP/1.1 401 Unauthorized\r\n" in rest
            assert b"100" not in rest
            writer.close()
            # A client that sends the body at once needs no 100 Continue.
            eager = await served.exchange(head % b"/yes" + b"ab" + LAST)
            assert eager.startswith(b"HTTP/1.1 200 OK\r\n")

    run(test())


def test_a_wish_for_another_protocol_is_passed_over() -> None:
    """Java's own client asks for HTTP/2 so, with a body."""
    upgrade = b"POST /u HTTP/1.1\r\nhost: x\r\nconnection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\n"

    async def test() -> None:
        async with serving(echo) as served:
            answer = await served.exchange(upgrade + b"content-length: 4\r\n\r\nbody" + LAST)
            assert bodies(answer) == [b"POST /u body", b"GET /last "]

    run(test())


@pytest.mark.parametrize(
    "head", [b"GET / HTTP/1.1\r\nhost: x\r\nx-a: b\nx: y\r\n\r\n", b"\r\n\r\n" + GET, b"\0" * 70_000]
)
def test_what_is_no_request_is_told_so(head: bytes) -> None:
    async def test() -> None:
        async with serving(echo) as served:
            answer = await served.exchange(head + LAST)
            [(status, headers, body)] = Answers().read(answer)
            assert status == (431 if len(head) > 1000 else 400)
            assert (headers[b"connection"], headers[b"content-type"]) == (b"close", b"application/json")
            assert b'"code": "malformed_request"' in body

    run(test())


def test_an_answer_reaches_a_client_that_goes_on_sending() -> None:
    """Closed at once, its kernel would get a reset and might drop the answer unread."""

    async def refuse(scope: Message, receive: Receive, send: Send) -> None:
        await send({**START, "status": 401})
        await send(part(b"no", more=False))

    async def test() -> None:
        async with serving(refuse) as served:
            reader, writer = await served.connect()
            writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n")
            for _ in range(40):
                writer.write(b" " * (64 << 10))
                await writer.drain()
                await asyncio.sleep(0.005)
            [(status, headers, body)] = Answers().read(await reader.read())
            assert (status, headers[b"connection"], body) == (401, b"close", b"no")
            writer.write(b" ")
            # In virtual time.
            await asyncio.sleep(LINGER_SECONDS + 0.3)
            with pytest.raises(ConnectionError):
                await sending(writer)
            writer.close()

    run_virtually(test())


async def sending(writer: asyncio.StreamWriter) -> None:
    for _ in range(20):
        writer.write(b" " * 1000)
        await writer.drain()
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("way", ["close", "abort", "half"])
def test_a_hang_up_is_told_at_once(way: str) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def waits(scope: Message, receive: Receive, send: Send) -> None:
        await whole_body(receive)
        began.set()
        assert (await receive())["type"] == "http.disconnect"
        # In vain, and without harm.
        await send(START)
        await send(part(b"x" * 1000, more=True))
        await send(part(b"", more=False))
        ended.set()

    async def test() -> None:
        async with serving(waits) as served:
            _, writer = await served.connect()
            writer.write(GET)
            await began.wait()
            left = asyncio.get_running_loop().time()
            if way == "abort":
                writer.transport.abort()
            elif way == "half":
                writer.write_eof()
            else:
                writer.close()
            await ended.wait()
            # In virtual time: no timer had to end before.
            assert asyncio.get_running_loop().time() == left
            writer.close()

    run_virtually(test())


def test_a_body_that_breaks_off_is_told_and_what_came_is_kept() -> None:
    seen: list[Message] = []
    ended = asyncio.Event()

    async def reads(scope: Message, receive: Receive, send: Send) -> None:
        while not seen or seen[-1]["type"] != "http.disconnect":
            seen.append(await receive())
        ended.set()

    async def test() -> None:
        async with serving(reads) as served:
            _, writer = await served.connect()
            writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf")
            await asyncio.sleep(0.05)
            writer.close()
            await ended.wait()
        assert seen[0] == {"type": "http.request", "body": b"half", "more_body": True}

    run(test())


def test_an_application_that_fails() -> None:
    async def fails(scope: Message, receive: Receive, send: Send) -> None:
        if scope["path"] == "/out-of-turn":
            await send(part(b"", more=False))
        if scope["path"] == "/replaced":
            await send(START)
            await send({**START, "status": 503})
            await send(part(b"sorry", more=False))
        if scope["path"] == "/header":
            await send({**START, "headers": [(b"x", b"a\r\nset-cookie: b")]})
            await send(part(b"", more=False))
        if scope["path"] == "/begun":
            await send(START)
            await send(part(b"half", more=True))
            await send(START)
        if scope["path"] != "/silent":
            raise KeyError("fails")

    async def test() -> None:
        async with serving(fails) as served:
            replaced = Answers().read(await served.exchange(GET.replace(b"/ ", b"/replaced ") + LAST))
            assert next((status, body) for status, _, body in replaced) == (503, b"sorry")
            for path in (b"/", b"/out-of-turn", b"/header", b"/silent"):
                [(status, _, body)] = Answers().read(await served.exchange(GET.replace(b"/ ", path + b" ")))
                assert (status, b"set-cookie" in body) == (500, False)
            assert not Answers().read(await served.exchange(GET.replace(b"/ ", b"/begun ")))

    run(test())


def test_a_client_that_does_not_read_holds_its_application() -> None:
    sent, released = [0], asyncio.Event()

    async def endless(scope: Message, receive: Receive, send: Send) -> None:
        await send(START)
        while sent[0] < 200 << 20 and not released.is_set():
            await asyncio.sleep(0)
            await send(part(b"x" * 10_000, more=True))
            sent[0] += 10_000
        await send(part(b"", more=False))

    async def test() -> None:
        async with serving(endless) as served:
            reader, writer = await served.connect(buffer=4096)
            writer.write(LAST)
            before = -1
            while before != sent[0]:
                before = sent[0]
                # In virtual time: it passes when nothing more can be sent.
                await asyncio.sleep(0.2)
            # Only the kernel's buffers and our own are filled.
            assert sent[0] < 8 << 20
            released.set()
            read = 0
            while data := await reader.read(1 << 20):
                read += len(data)
            assert read > sent[0]
            writer.close()

    run_virtually(test())


@asynccontextmanager
async def deaf(sent_ahead: bytes) -> AsyncIterator[int]:
    """Return the number of bytes that a client can send to an application that reads nothing."""
    stay = asyncio.Event()

    async def waits(scope: Message, receive: Receive, send: Send) -> None:
        await stay.wait()
        await whole_body(receive)
        await send(START)
        await send(part(b"", more=False))

    async with serving(waits) as served:
        client = socket.create_connection(("127.0.0.1", served.port))
        client.setblocking(False)
        sent = misses = 0
        while misses < 20:
            try:
                sent += client.send(sent_ahead)
                misses = 0
            except BlockingIOError:
                misses += 1
            await asyncio.sleep(0.005)
        yield sent
        stay.set()
        client.close()


@pytest.mark.parametrize("head", [b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 999999999\r\n\r\n", GET])
def test_a_client_that_sends_faster_than_it_is_read_has_to_wait(head: bytes) -> None:
    async def test() -> None:
        async with deaf(head * (1 << 12)) as sent:
            assert BUFFER_BYTES < sent < 16 << 20

    run_virtually(test())
