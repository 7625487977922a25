"""Body framing for any split into pieces."""

from __future__ import annotations

import random
from typing import Any

import h11
import pytest

from gateway.http.server.body import Body, ChunkedBody, LengthBody, MalformedChunks

CHUNKED = b"5\r\nhello\r\n0a;a=b;c\r\n, world...\r\n1; x\r\n!\r\n000\r\nx-trailer: y\r\n\r\n"
START = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


def take(body: Body, pieces: list[bytes]) -> tuple[bytes, bytes]:
    """(the body, what follows it) when `pieces` come one after another."""
    parts, rest = [], b""
    for piece in pieces:
        if body.done:
            rest += piece
        else:
            part, rest = body.take(piece)
            assert not rest or body.done
            parts.append(part)
    return b"".join(parts), rest


@pytest.mark.parametrize("size", range(1, 20))
def test_chunks_in_pieces_of_any_size(size: int) -> None:
    data = CHUNKED + b"GET /"
    body = ChunkedBody()
    assert take(body, [data[at : at + size] for at in range(0, len(data), size)]) == (
        b"hello, world...!",
        b"GET /",
    )
    assert body.done


@pytest.mark.parametrize("size", range(1, 9))
def test_a_length_in_pieces_of_any_size(size: int) -> None:
    data = b"hello" + b"GET /"
    assert take(LengthBody(5), [data[at : at + size] for at in range(0, len(data), size)]) == (
        b"hello",
        b"GET /",
    )
    assert LengthBody(0).done


@pytest.mark.parametrize("data", [CHUNKED[:end] for end in range(len(CHUNKED))])
def test_chunks_that_are_not_whole_are_waited_for(data: bytes) -> None:
    body = ChunkedBody()
    take(body, [data])
    assert not body.done


@pytest.mark.parametrize(
    "data",
    [
        b"5\r\nhelloX\r\n",
        b"5\r\nhell\r\n0\r\n\r\n",
        b"\r\n",
        b"x\r\n",
        b"-1\r\n",
        b"+1\r\n",
        b"0x1\r\n",
        b" 1\r\n",
        b"1_0\r\n",
        b"1 ;a\r\n",
        b"1\n;\r\n",
        b"1,\r\n",
        b"1;\0\r\n",
        b"1" * 16 + b"\r\n",
        b"1;" + b"a" * 5000,
        b"1" * 5000,
        b"".join(b"1;" + b"a" * 4000 + b"\r\nx\r\n" for _ in range(5)),
        b"1\r\nx\r\n" * 20_000,
        b"0\r\n x: y\r\n\r\n",
        b"0\r\nx\r\n\r\n",
        b"0\r\nx: y\n\r\n",
        b"0\r\nx: \0\r\n\r\n",
        b"0\r\n" + b"x: y\r\n" * 20_000,
    ],
)
def test_malformed_chunks(data: bytes) -> None:
    for pieces in ([data], [data[at : at + 3] for at in range(0, len(data), 3)]):
        body = ChunkedBody()
        with pytest.raises(MalformedChunks):
            take(body, pieces)
        assert not body.done


def test_what_is_accepted_h11_reads_alike() -> None:
    rng = random.Random(5)
    accepted = 0
    for _ in range(20_000):
        data = CHUNKED
        for _ in range(rng.randrange(3)):
            at = rng.randrange(len(data))
            data = (
                data[:at] + rng.choice([b"", b"0", b"1", b"\r", b"\n", b"\r\n", b";", b"f"]) + data[at + 1 :]
            )
        body = ChunkedBody()
        try:
            read, rest = take(body, [data + b"GET /"])
        except MalformedChunks:
            continue
        if body.done:
            accepted += 1
            assert by_h11(data + b"GET /") == (read, rest), data
    assert accepted > 2000


def by_h11(data: bytes) -> tuple[bytes, bytes]:
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(START + data)
    body, event = b"", None
    while type(event) is not h11.EndOfMessage:
        event = connection.next_event()
        assert event is not h11.NEED_DATA, data
        if isinstance(event, h11.Data):
            body += bytes(event.data)
    rest: Any = connection.trailing_data
    return body, bytes(rest[0])
