"""Invalid HTTP, wrong body lengths, clients that do not read, a thousand at a time: on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import socket
import threading
import time
import zlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.worker_process import TOKEN, Worker, run_worker
from worker_engine import server
from worker_engine.config import EngineConfig
from worker_engine.http.connection import Runner
from worker_engine.server import create_app
from worker_engine.service import Service

BODY: dict[str, Any] = {"model": "tiny", "prompt": "x", "max_tokens": 2, "temperature": 0, "ignore_eos": True}
GOOD = json.dumps(BODY).encode()
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: w\r\nAuthorization: Bearer " + TOKEN.encode() + b"\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
MANY = 1000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("worker")


@pytest.fixture(scope="module")
def worker(tiny_model: Path, folder: Path) -> Iterator[Worker]:
    flags = ("--max-waiting", str(MANY), "--max-waiting-per-tenant", str(MANY))
    # From cold: a test reads the process's memory.
    with run_worker(tiny_model, folder, *flags, from_cold=True) as worker:
        yield worker


def exchange(port: int, *parts: bytes, end: bool = False) -> tuple[int, dict[str, str], bytes]:
    """Send `parts` in one packet each; return the first answer's status, headers and body.

    A part with `Expect: 100-continue` is followed by the next one once the worker reads the request.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        for part in parts:
            connection.sendall(part)
            if b"Expect: 100-continue" in part:
                assert connection.recv(len(CONTINUE), socket.MSG_WAITALL) == CONTINUE
            else:
                time.sleep(0.02)
        if end:
            connection.shutdown(socket.SHUT_WR)
        data = b""
        while b"\r\n\r\n" not in data and (chunk := connection.recv(65536)):
            data += chunk
        head, _, body = data.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        while len(body) < int(headers["content-length"]):
            body += connection.recv(65536)
    return int(status.split()[1]), headers, body


def length(body: bytes) -> bytes:
    return b"Content-Length: %d\r\n\r\n" % len(body)


NO_HTTP: dict[str, tuple[bytes, ...]] = {
    "no request line": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",),
    "another version": (b"GET /health HTTP/9.9\r\n\r\n",),
    "a head without end": (b"GET /health HTTP/1.1\r\nHost: w\r\nX: " + b"x" * 100_000,),
    "NUL in a header": (b"GET /health HTTP/1.1\r\nHost: w\r\nX: a\0b\r\n\r\n",),
    "no length": (HEAD + b"Content-Length: five\r\n\r\nhello",),
    "a negative length": (HEAD + b"Content-Length: -5\r\n\r\nhello",),
    "two lengths": (HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",),
    "length and chunks": (HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",),
    "no chunk": (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n",),
}


@pytest.mark.parametrize("case", NO_HTTP)
def test_what_is_no_http_is_refused_in_openais_form(case: str, worker: Worker) -> None:
    status, headers, body = exchange(worker.port, *NO_HTTP[case])
    assert (status, headers["content-type"]) == (400, "application/json; charset=utf-8")
    error = json.loads(body)["error"]
    assert (error["type"], set(error)) == ("invalid_request_error", {"message", "type", "code", "param"})
    assert len(error["message"]) < 300
    assert headers["server"] == "graftwork"


@pytest.mark.parametrize("bad", [b"zz\r\nhello\r\n", b"5\nhello\n", b"-1\r\n", b"fffffffffffffffff\r\n"])
@pytest.mark.parametrize("before", [b"", b"5\r\nhello\r\n"])
def test_a_chunk_that_is_none_is_refused_at_once(worker: Worker, before: bytes, bad: bytes) -> None:
    """In a packet after its head's, where the request is already being read."""
    head = HEAD + b"Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n"
    parts = (head, *([before] if before else []), bad)
    status, headers, body = exchange(worker.port, *parts)
    assert (status, headers["connection"]) == (400, "close")
    assert json.loads(body)["error"]["message"].startswith("the body cannot be read: ")
    assert worker.call("/load")[1]["pending"] == 0


GARBAGE = b"\xff\xfe garbage that no codec knows" * 8


@pytest.mark.parametrize("codec", [b"deflate", b"gzip", b"br", b"zstd", b"x-unknown"])
@pytest.mark.parametrize("apart", [False, True])
def test_a_body_that_its_encoding_does_not_fit(worker: Worker, codec: bytes, apart: bool) -> None:
    """In one packet the parser meets it, in two the handler does."""
    head = HEAD + b"Content-Encoding: " + codec + b"\r\n" + length(GARBAGE)
    status, headers, body = exchange(worker.port, *((head, GARBAGE) if apart else (head + GARBAGE,)))
    assert status == 400
    assert json.loads(body)["error"]["type"] == "invalid_request_error"
    assert headers["server"] == "graftwork"


def test_encoded_bodies_are_read_and_bombs_are_not(worker: Worker) -> None:
    for codec, encoded in ((b"gzip", gzip.compress(GOOD)), (b"deflate", zlib.compress(GOOD))):
        status, _, body = exchange(
            worker.port, HEAD + b"Content-Encoding: " + codec + b"\r\n" + length(encoded) + encoded
        )
        assert (status, json.loads(body)["usage"]["completion_tokens"]) == (200, 2)
    bomb = gzip.compress(b" " * (64 << 20), 1)
    before = resident(worker)
    head = HEAD + b"Content-Encoding: gzip\r\n" + length(bomb)
    status, _, body = exchange(worker.port, head, bomb)
    assert (status, json.loads(body)["error"]["code"]) == (413, "request_too_large")
    assert resident(worker) - before < 40 << 20


def resident(worker: Worker) -> int:
    lines = Path(f"/proc/{worker.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS"))


def test_a_length_that_is_too_small_ends_the_connection_not_the_worker(worker: Worker) -> None:
    """A request that arrives in one packet with invalid bytes is refused with them."""
    for body in (GOOD, GOOD[:10]):
        status, _, told = exchange(worker.port, HEAD + length(body) + body + b"what is left")
        assert (status, json.loads(told)["error"]["type"]) == (400, "invalid_request_error")
    assert worker.complete()[0] == 200


def test_a_length_that_is_too_large_holds_no_place(worker: Worker) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", worker.port), timeout=30))
            connection.sendall(HEAD + b"Content-Length: 5000\r\n\r\n" + GOOD)
        assert worker.complete()[0] == 200
        assert worker.call("/load")[1]["pending"] == 0


def test_invalid_utf8_outside_of_the_body(worker: Worker) -> None:
    for target in (
        b"/v1/nothing/\xff\xfe",
        b"/v1/nothing/%ff%fe",
        b"/adapters/%ff",
        b"/adapters?limit=%ff",
        b"/adapters?%ff=1",
        b"/models/%ff%fe/adapters",
    ):
        head = HEAD.replace(b"POST /v1/completions", b"GET " + target) + b"\r\n"
        status, _, body = exchange(worker.port, head)
        assert status in (400, 404), target
        assert isinstance(json.loads(body), dict)
    for name in (b"x-request-id", b"x-amzn-sagemaker-custom-attributes", b"x-graftwork-timeout"):
        status, _, body = exchange(worker.port, HEAD + name + b": \xff\xfe\r\n" + length(GOOD) + GOOD)
        assert status in (200, 400), name
        assert isinstance(json.loads(body), dict)


def test_no_answer_tells_of_libraries(worker: Worker) -> None:
    for head in (
        b"GET /health",
        b"GET /v1/nothing",
        b"PUT /health",
        b"POST /v1/completions",
        b"GET /metrics",
    ):
        status, headers, body = exchange(worker.port, head + b" HTTP/1.1\r\nHost: w\r\n\r\n")
        assert headers["server"] == "graftwork", status
        assert b"aiohttp" not in body.lower()
    with socket.create_connection(("127.0.0.1", worker.port), timeout=30) as connection:
        asked = json.dumps(BODY | {"stream": True}).encode()
        connection.sendall(HEAD + length(asked) + asked)
        assert b"Server: graftwork\r\n" in connection.recv(65536)


async def one_of_many(port: int, opened: asyncio.Barrier) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await opened.wait()
    writer.write(HEAD + length(GOOD) + GOOD)
    line = await reader.readline()
    await reader.readuntil(b"}\n" if b"200" not in line else b"\r\n\r\n")
    writer.close()
    return line


@pytest.mark.costly("a thousand connections")
def test_a_thousand_connections_at_once_are_all_served(worker: Worker) -> None:
    async def crowd() -> list[bytes]:
        opened = asyncio.Barrier(MANY)
        return await asyncio.gather(*[one_of_many(worker.port, opened) for _ in range(MANY)])

    beats: list[int] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.2):
            beats.append(worker.call("/health")[0])

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        lines = asyncio.run(asyncio.wait_for(crowd(), 120))
    finally:
        done.set()
        watcher.join()
    assert set(lines) == {b"HTTP/1.1 200 OK\r\n"}
    assert set(beats) <= {200}
    assert worker.call("/load")[1]["pending"] == 0


def test_none_of_this_left_a_traceback(worker: Worker, folder: Path) -> None:
    """Last in this file: the log of all of the above."""
    assert worker.complete()[0] == 200
    log = (folder / "log").read_text()
    assert "Traceback" not in log
    assert "refused what is no HTTP request from 127.0.0.1" in log


@contextlib.asynccontextmanager
async def serving(model: Path, cache: Path, **options: Any) -> AsyncIterator[tuple[Service, Runner, int]]:
    """A worker in this process whose sockets have small buffers."""
    config = EngineConfig(
        model, "tiny", device="cpu", memory_gib=0.02, adapter_cache_dir=cache, num_threads=1
    )
    service = Service(config)
    runner = Runner(create_app(service), **options)
    await runner.setup()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    try:
        await web.SockSite(runner, listener).start()
        yield service, runner, listener.getsockname()[1]
    finally:
        await runner.cleanup()


async def ask(port: int, body: bytes = GOOD) -> tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter]:
    """The status line of a request that is on its way."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: w\r\n" + length(body) + body)
    return await reader.readline(), reader, writer


def silent(port: int, body: dict[str, Any]) -> socket.socket:
    """A client that asks and never reads."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    asked = json.dumps(BODY | body).encode()
    client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: w\r\n" + length(asked) + asked)
    return client


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.costly("fills a connection's buffers")
def test_a_client_that_does_not_read_is_hung_up_on(tiny_model: Path, tmp_path: Path, stream: bool) -> None:
    """Meanwhile others are served, and what waits for it is a few buffers' worth."""

    async def main() -> None:
        async with serving(tiny_model, tmp_path, stalled_seconds=1.0) as (service, runner, port):
            asked = {"max_tokens": 400, "logprobs": 5, "stream": stream}
            clients = [silent(port, asked) for _ in range(4)]
            held = 0
            while not service.num_pending:  # noqa: ASYNC110 - what others do sets no event
                await asyncio.sleep(0.01)
            line, _, writer = await ask(port)
            assert line == b"HTTP/1.1 200 OK\r\n"
            writer.close()
            server_ = runner.server
            assert server_ is not None
            async with asyncio.timeout(60):
                while service.num_pending or any(item.transport for item in server_.connections):
                    for item in server_.connections:
                        if isinstance(item.transport, asyncio.WriteTransport):
                            held = max(held, item.transport.get_write_buffer_size())
                    await asyncio.sleep(0.01)
            if stream:
                assert held < 256 << 10
            for client in clients:
                client.close()
            line, _, writer = await ask(port)
            assert line == b"HTTP/1.1 200 OK\r\n"
            writer.close()

    asyncio.run(main())


def test_a_body_that_does_not_come_is_408(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "BODY_SECONDS", 0.2)

    async def main() -> None:
        async with serving(tiny_model, tmp_path) as (_, _, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(HEAD + b"Content-Length: 5000\r\n\r\n" + GOOD)
            assert await reader.readline() == b"HTTP/1.1 408 Request Timeout\r\n"
            told = await reader.readuntil(b"}}")
            assert b'"code": "request_timeout"' in told
            writer.close()

    asyncio.run(main())
