"""Malformed, cut and pipelined requests to real servers: refused in 4xx, and read as h11 reads them."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

import h11
import httptools

from tests.fuzz.drawing import spliced
from tests.fuzz.http_servers import HttpServer, all_servers
from tests.fuzz.target import Target
from tests.gateway.conftest import ACME
from tests.gateway.http.server.conftest import Answers

_ANSWER_SECONDS: Final = 20.0
"""A server that neither answers nor closes by then hangs."""
_QUIET_SECONDS: Final = 0.02
"""How long to look for an answer that must not come."""
_HEALTHY_EVERY: Final = 10
_ABSOLUTE: Final = re.compile(rb"^https?://[^/?#]+", re.IGNORECASE)
_BARE_LF: Final = re.compile(rb"(?<!\r)\n")
_PIECES: Final = (
    b"\r\n",
    b"\n",
    b"\r",
    b"\r\n\r\n",
    b" ",
    b"\t",
    b":",
    b"\0",
    b"\x0b",
    b"\x85",
    b"\xff",
    b",",
    b";",
    b"0\r\n\r\n",
    b"+",
    b"0x",
    b"content-length: 5\r\n",
    b"Content-Length: 0\r\n",
    b"content-length: 5, 5\r\n",
    b"content-length: -1\r\n",
    b"transfer-encoding: chunked\r\n",
    b"Transfer-Encoding: identity\r\n",
    b"transfer-encoding:\x0bchunked\r\n",
    b"transfer-encoding: gzip, chunked\r\n",
    b" folded\r\n",
    b"HTTP/1.0",
    b"HTTP/0.9",
    b"HTTP/2.0",
    b"connection: close\r\n",
    b"connection: keep-alive\r\n",
    b"connection: upgrade\r\nupgrade: h2c\r\n",
    b"expect: 100-continue\r\n",
    b"expect: x\r\n",
    b"host: y\r\n",
    b"%00",
    b"%ff",
    b"%",
    b"/../",
    b"//",
    b"http://x/",
    b"*",
    b"?",
    b"#",
    b"1" * 20,
    b"f" * 17,
    b"5\r\nhello\r\n",
    b"content-encoding: gzip\r\n",
    b"content-type: multipart/form-data; boundary=b\r\n",
    b"--b\r\n",
    b"range: bytes=0-\r\n",
    b"cookie: a=\xff\r\n",
    b"authorization: Bearer x\r\n",
    b"authorization: Basic \xff\r\n",
    b"x: " + b"y" * 70_000 + b"\r\n",
    b"x: y\r\n" * 101,
    b"1\r\nx\r\n" * 100,
    b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01",
)
_CHAT: Final = json.dumps({"model": "bot", "messages": [{"role": "user", "content": "hi"}]}).encode()
_FORM: Final = b'--b\r\ncontent-disposition: form-data; name="files"; filename="a.zip"\r\n\r\nPK\r\n--b--\r\n'
_KEY: Final = b"authorization: Bearer " + ACME.encode()
_JSON: Final = b"content-type: application/json"

Request = tuple[bytes, bytes, Sequence[bytes], bytes | None]
"""Method, target, header lines, body."""
REQUESTS: Final[dict[str, tuple[Request, ...]]] = {
    "echo": (
        (b"GET", b"/a?b=c", (), None),
        (b"POST", b"/a%20b", (), b"hello"),
        (b"PUT", b"/x", (b"x-a: b",), b"x" * 3000),
        (b"DELETE", b"/", (), None),
        (b"OPTIONS", b"*", (), None),
    ),
    "gateway": (
        (b"GET", b"/healthz", (), None),
        (b"GET", b"/v1/models", (_KEY,), None),
        (b"POST", b"/v1/chat/completions", (_KEY, _JSON), _CHAT),
        (b"POST", b"/v1/chat/completions", (_JSON,), _CHAT),
        (b"POST", b"/v1/chat/completions", (_KEY, _JSON), _CHAT.replace(b"}]", b'}], "stream": true')),
        (b"OPTIONS", b"/v1/models", (b"origin: http://web.test",), None),
        (b"POST", b"/v1/responses", (_KEY,), b'{"model": 1}'),
    ),
    "web": (
        (b"GET", b"/login", (), None),
        (b"POST", b"/login", (b"content-type: application/x-www-form-urlencoded",), b"a=b"),
        (b"GET", b"/api/v1/adapters?page=1", (b"authorization: Bearer gw_x_y",), None),
        (b"POST", b"/api/v1/adapters", (b"content-type: multipart/form-data; boundary=b",), _FORM),
        (b"PATCH", b"/api/v1/uploads/0198", (), b"x" * 100),
        (b"GET", b"/static/app.css", (b"accept-encoding: gzip",), None),
        (b"GET", b"/nothing/%c3%a9", (b"accept-language: de\xff",), None),
    ),
}


@dataclass(slots=True)
class Reading:
    """A client's bytes as h11 reads them.

    Attributes:
        requests: (method, path, query, body) of each whole request.
        closes: the connection ends behind the last one.
        comparable: h11 and we agree on what follows; it keeps no HTTP/1.0 connection open.
        strict: every line ends as the standard says; to us a bare LF ends none, so that more is waited for.
    """

    requests: list[tuple[bytes, bytes, bytes, bytes]]
    closes: bool = False
    comparable: bool = True
    strict: bool = True


class HttpCases:
    """Sends random bytes to one of the servers over a new connection."""

    def __init__(self, servers: Sequence[HttpServer]) -> None:
        self._servers = servers
        self._cases = 0

    def pids(self) -> list[int]:
        return [pid for server in self._servers for pid in server.pids()]

    def run(self, draw: Random) -> str:
        server = draw.choice(self._servers)
        data = _sent(draw, REQUESTS[server.kind])
        reading = read_by_h11(data)
        received, closed = _talk(draw, server.port, data, reading)
        answers = [answer for answer in Answers().read(received) if answer[0] >= 200]
        statuses = [status for status, _, _ in answers]
        told = (server.kind, data[:3000], statuses, len(reading.requests))
        assert all(status < 500 for status in statuses), (*told, answers[-1])
        if reading.comparable:
            # One more where a server answers before a body has come, or refuses what follows.
            assert len(answers) <= len(reading.requests) + 1, told
            assert closed or not reading.strict or len(answers) >= len(reading.requests), told
        if server.kind == "echo":
            _compare(answers, reading, told)
        self._cases += 1
        if self._cases % _HEALTHY_EVERY == 0:
            _demand_healthy(server)
        if not answers:
            return f"{server.kind} waited"
        return f"{server.kind} {statuses[-1] // 100}xx"


def _compare(
    answers: Sequence[tuple[int, dict[bytes, bytes], bytes]], reading: Reading, told: object
) -> None:
    """Check that h11 reads every request that was served, and that nothing follows a refusal."""
    for index, (status, _, body) in enumerate(answers):
        if status != 200:
            assert index == len(answers) - 1, told
            return
        line, _, content = body.partition(b"\n")
        if index >= len(reading.requests):
            assert not reading.comparable, told
            return
        assert (*line.split(b" "), content) == reading.requests[index], (told, body)


def _sent(draw: Random, requests: Sequence[Request]) -> bytes:
    data = b"".join(_request(draw, *draw.choice(requests)) for _ in range(draw.choice((1, 1, 2, 3))))
    if draw.random() < 0.75:
        data = spliced(draw, data, _PIECES, 3)
    if draw.random() < 0.1:
        data = data[: draw.randrange(len(data) + 1)]
    return data


def _request(
    draw: Random, method: bytes, target: bytes, headers: Sequence[bytes], body: bytes | None
) -> bytes:
    lines = [b"%b %b HTTP/1.1" % (method, target), b"host: 127.0.0.1", *headers]
    if body is not None and draw.random() < 0.4:
        lines.append(b"transfer-encoding: chunked")
        body = _chunked(draw, body)
    elif body is not None:
        lines.append(b"content-length: %d" % len(body))
    if draw.random() < 0.1:
        lines.append(draw.choice((b"connection: close", b"expect: 100-continue")))
    return b"\r\n".join(lines) + b"\r\n\r\n" + (body or b"")


def _chunked(draw: Random, body: bytes) -> bytes:
    size = draw.choice((1, 7, 1000))
    chunks = [body[at : at + size] for at in range(0, len(body), size)][:400]
    extension = draw.choice((b"", b"", b";a=b", b' ; c="d"'))
    trailer = draw.choice((b"", b"", b"x-t: y\r\n"))
    return (
        b"".join(b"%x%b\r\n%b\r\n" % (len(chunk), extension, chunk) for chunk in chunks)
        + b"0\r\n"
        + trailer
        + b"\r\n"
    )


def read_by_h11(data: bytes) -> Reading:
    """Read pipelined requests by another parser."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    connection.receive_data(data)
    reading, asked, body = Reading([], strict=_BARE_LF.search(data) is None), None, b""
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError:
            return reading
        if isinstance(event, h11.Request):
            asked, body = event, b""
            reading.comparable = event.http_version == b"1.1"
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage) and asked is not None:
            # An absolute target means its path, which is / where it names none (RFC 9112, 3.2.2).
            target = _ABSOLUTE.sub(b"", asked.target)
            target = target if target[:1] == b"/" or target == b"*" else b"/" + target
            path, _, query = target.partition(b"?")
            reading.requests.append((asked.method, path, query, body))
            status = 400 if asked.method == b"CONNECT" else 200
            connection.send(h11.Response(status_code=status, headers=[("content-length", "0")]))
            connection.send(h11.EndOfMessage())
            if connection.our_state is not h11.DONE:
                reading.closes = True
                return reading
            connection.start_next_cycle()
        else:
            return reading


def _talk(draw: Random, port: int, data: bytes, reading: Reading) -> tuple[bytes, bool]:
    """Send the bytes in pieces; return what came back, and whether the server closed the connection."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=_ANSWER_SECONDS) as client:
        # The server may close before it has taken all.
        with suppress(BrokenPipeError, ConnectionResetError):
            for piece in _pieces(draw, data):
                client.sendall(piece)
        try:
            while True:
                waits = reading.closes or _num_answers(received) < len(reading.requests)
                known = reading.comparable and reading.strict
                client.settimeout(_ANSWER_SECONDS if waits and known else _QUIET_SECONDS)
                part = client.recv(1 << 16)
                if not part:
                    return received, True
                received += part
        except ConnectionResetError:
            return received, True
        except TimeoutError:
            assert client.gettimeout() == _QUIET_SECONDS, ("no answer", data[:3000], received)
            return received, False


def _pieces(draw: Random, data: bytes) -> list[bytes]:
    cuts = sorted(draw.randrange(len(data) + 1) for _ in range(draw.choice((0, 0, 1, 4))))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def _num_answers(received: bytes) -> int:
    if not received:
        return 0
    try:
        return sum(status >= 200 for status, _, _ in Answers().read(received))
    except httptools.HttpParserError as error:
        raise AssertionError(f"the answers are no HTTP: {received[:2000]!r}") from error


def _demand_healthy(server: HttpServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=_ANSWER_SECONDS) as client:
        client.sendall(b"GET %b HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n" % server.health)
        assert client.makefile("rb").read().startswith(b"HTTP/1.1 200 "), server


@contextmanager
def open_target(folder: Path) -> Iterator[Target]:
    """Starts the servers."""
    with all_servers(folder) as servers:
        cases = HttpCases(servers)
        yield Target(cases.run, cases.pids)
