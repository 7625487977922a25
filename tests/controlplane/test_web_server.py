"""The web process among clients that send nothing, little, or what is no HTTP, and anonymous uploads."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from controlplane import web_server
from controlplane.artifacts.uploads import authentication
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create
from tests.conftest import free_port
from tests.controlplane.conftest import Start
from tests.waiting import eventually

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.costly("starts the web process")]
IDLE, DRIPPING = 5_000, 1_000


class Web:
    def __init__(self, process: subprocess.Popen[bytes], port: int, spool: Path) -> None:
        self.process, self.port, self.spool = process, port, spool
        self.url = f"http://127.0.0.1:{port}"

    def connect(self, sent: bytes = b"") -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        connection.sendall(sent)
        return connection

    def answer(self, sent: bytes) -> bytes:
        """The status line, and all that follows until the server closes."""
        with self.connect(sent) as connection:
            return connection.makefile("rb").read()

    def written(self) -> int:
        """Bytes of the temporary files that it holds open; they have no name."""
        total = 0
        for pid in [self.process.pid, *_children(self.process.pid)]:
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if str(entry.readlink()).startswith(str(self.spool)):
                        total += entry.stat().st_size
        return total

    def has_written(self, more_than: int) -> bool:
        return self.written() > more_than


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture
def web(start: Start, tmp_path: Path) -> Web:
    (tmp_path / "spool").mkdir()
    port = free_port()
    process = start("-m", "controlplane.web_server", "--port", str(port), TMPDIR=str(tmp_path / "spool"))
    served = Web(process, port, tmp_path / "spool")

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    eventually(listens, message=(tmp_path / "log").read_text)
    return served


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < IDLE + DRIPPING + 500:
        pytest.skip(f"a process may open {hard} files here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_idle_and_dripping_clients_hold_up_nobody(web: Web, many_files: None) -> None:
    head = b"POST /login HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100000\r\n\r\nx"
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(web.connect()) for _ in range(IDLE)]
        connections += [stack.enter_context(web.connect(head)) for _ in range(DRIPPING)]
        for _ in range(5):
            assert httpx.get(web.url + "/login", timeout=60).status_code == 200
        for connection in connections[-DRIPPING:]:
            connection.sendall(b"y")
        assert httpx.get(web.url + "/login", timeout=60).status_code == 200


REFUSED = [
    b"GET /login HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\ncontent-length: 0\r\n\r\n",
    b"GET /login HTTP/1.1\nhost: x\n\n\r\n\r\n",
    b"POST /login HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n",
    b"POST /login HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n\r\n",
    b"GET /login HTTP/1.1\r\n\r\n",
]


def test_what_the_gateway_refuses_is_refused(web: Web) -> None:
    for head in REFUSED:
        assert web.answer(head).startswith(b"HTTP/1.1 400 "), head


ANONYMOUS = [
    (b"POST /api/v1/adapters", b"401"),
    (b"POST /api/v1/adapters/bot/versions", b"401"),
    (b"PATCH /api/v1/uploads/0198", b"401"),
    (b"POST /api/v1/prompt-sets", b"401"),
    (b"POST /t/acme/adapters/new", b"403"),
]


def test_nobody_writes_to_the_disk_who_is_not_known(web: Web) -> None:
    for key in (b"", b"authorization: Bearer gw_x_y\r\n", b"cookie: graftwork_session=x\r\n"):
        for line, status in ANONYMOUS:
            head = (
                line
                + b" HTTP/1.1\r\nhost: 127.0.0.1\r\n"
                + key
                + b"content-type: multipart/form-data; boundary=b\r\ncontent-length: 2000000000\r\n\r\n"
            )
            with web.connect(head + b"x" * 1_500_000) as connection:
                answered = connection.recv(100).split()[1]
                assert (web.written(), answered) == (0, status), (line, key)


def test_known_callers_send_a_bounded_number_of_files_at_once(web: Web, tenant: Tenant) -> None:
    _, key = api_key_create(tenant=tenant, name="k", scopes=["manage"])
    head = (
        b"POST /api/v1/adapters HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer "
        + key.encode()
        + b"\r\ncontent-type: multipart/form-data; boundary=b\r\nconnection: close"
        + b"\r\ncontent-length: 2000000\r\n\r\n"
    )
    with contextlib.ExitStack() as stack:
        for number in range(authentication.PER_CALLER):
            stack.enter_context(web.connect(head + b"x" * 1_500_000))
            eventually(partial(web.has_written, number * 1_500_000))
        assert web.answer(head).startswith(b"HTTP/1.1 429 ")
        # A small body is no file.
        headers = {"authorization": f"Bearer {key}"}
        assert httpx.post(web.url + "/api/v1/adapters", json={}, headers=headers).status_code == 400
    eventually(lambda: not web.answer(head + b"x" * 2_000_000).startswith(b"HTTP/1.1 429 "))


def test_idle_connections_do_not_hold_up_a_stop(web: Web) -> None:
    with web.connect(), web.connect():
        web.process.terminate()
        assert web.process.wait(60) == 0


def test_an_answer_that_goes_on_is_cut_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_server, "STOP_SECONDS", 0.01)
    sent: list[str] = []

    async def run() -> None:
        life, heard = web_server.Lifespan(None), asyncio.Queue[dict[str, str]]()

        async def send(message: dict[str, str]) -> None:
            sent.append(message["type"])

        heard.put_nowait({"type": "lifespan.startup"})
        task = asyncio.ensure_future(life({"type": "lifespan"}, heard.get, send))
        await asyncio.sleep(0)
        life.stop()
        # The server says nothing of a shutdown while an answer is on its way.
        await task

    asyncio.run(run())
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
