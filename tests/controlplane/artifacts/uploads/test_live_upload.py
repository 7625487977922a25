"""A large upload to a real server process: in bounded memory, broken off, gone on with."""

from __future__ import annotations

import hashlib
import http.client
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from controlplane.artifacts.uploads.models import Upload
from controlplane.artifacts.uploads.selectors import upload_open
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create
from tests.conftest import free_port
from tests.controlplane.conftest import Start
from tests.waiting import eventually

pytestmark = pytest.mark.django_db(transaction=True)
SIZE, BLOCK = 256 << 20, 1 << 20


def block(number: int) -> bytes:
    """The file's block `number`: every one differs."""
    return number.to_bytes(8, "little") * (BLOCK // 8)


def blocks(begin: int, end: int) -> Iterator[bytes]:
    """The file's bytes from `begin` to `end`."""
    while begin < end:
        number, within = divmod(begin, BLOCK)
        data = block(number)[within : within + end - begin]
        begin += len(data)
        yield data


class Server:
    """A web server, and how much memory its processes hold."""

    def __init__(self, process: psutil.Process, port: int, key: str) -> None:
        self.process, self.port = process, port
        self.headers = {"Authorization": f"Bearer {key}", "Tus-Resumable": "1.0.0"}

    def ask(self, method: str, path: str, **headers: str) -> http.client.HTTPResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, headers={**self.headers, **named})
        reply = connection.getresponse()
        reply.read()
        connection.close()
        return reply

    def patch(self, path: str, offset: int, length: int) -> http.client.HTTPConnection:
        """Sends the head of a PATCH of `length` bytes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.putrequest("PATCH", path)
        headers = {
            **self.headers,
            "Upload-Offset": str(offset),
            "Content-Length": str(length),
            "Content-Type": "application/offset+octet-stream",
        }
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        return connection

    def memory(self) -> int:
        """Resident bytes of all its processes."""
        return sum(part.memory_info().rss for part in [self.process, *self.process.children(recursive=True)])


@pytest.fixture
def server(start: Start, tenant: Tenant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    _, key = api_key_create(tenant=tenant, name="k", scopes=["manage"])
    (tmp_path / "spool").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "spool"))
    port = free_port()
    process = start("-m", "controlplane.web_server", "--port", str(port))

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    eventually(listens, message=(tmp_path / "log").read_text)
    return Server(psutil.Process(process.pid), port, key)


def wait_for(server: Server, path: str, offset: int) -> int:
    """The upload's offset once it is at least `offset`."""

    def arrived() -> int:
        found = int(server.ask("HEAD", path).headers["Upload-Offset"])
        return found if found >= offset else 0

    return eventually(arrived)


@pytest.mark.costly("starts the web process")
def test_a_large_upload_is_broken_off_and_gone_on_with_in_bounded_memory(
    server: Server, tmp_path: Path
) -> None:
    made = server.ask(
        "POST",
        "/api/v1/uploads",
        Upload_Length=str(SIZE),
        Upload_Metadata="filename YWRhcHRlcl9tb2RlbC5zYWZldGVuc29ycw==",
    )
    assert made.status == 201
    path = "/" + str(made.headers["Location"]).split("/", 3)[3]
    before = server.memory()

    broken = server.patch(path, 0, SIZE)
    for data in blocks(0, 101 * BLOCK + 1):
        broken.send(data)
    arrived = wait_for(server, path, 100 * BLOCK)
    second = server.patch(path, arrived, 4)
    second.send(b"more")
    refused = second.getresponse()
    assert (refused.status, b"another request is writing" in refused.read()) == (409, True)
    peak = server.memory()
    second.close()
    broken.close()

    offset = wait_for(server, path, 101 * BLOCK)
    assert offset == 101 * BLOCK + 1, "what had come before the break is kept to the byte"
    rest = server.patch(path, offset, SIZE - offset)
    for number, data in enumerate(blocks(offset, SIZE)):
        rest.send(data)
        peak = max(peak, server.memory()) if number % 16 == 0 else peak
    reply = rest.getresponse()
    assert (reply.status, reply.headers["Upload-Offset"]) == (204, str(SIZE))
    rest.close()
    assert peak - before < 64 << 20, f"memory grew by {(peak - before) >> 20} MiB"
    assert list((tmp_path / "spool").iterdir()) == []

    digest, expected = hashlib.sha256(), hashlib.sha256()
    with upload_open(Upload.objects.get()) as stream:
        while piece := stream.read(BLOCK):
            digest.update(piece)
    for data in blocks(0, SIZE):
        expected.update(data)
    assert digest.digest() == expected.digest()
    assert server.ask("DELETE", path).status == 204
    assert [item for item in (tmp_path / "artifacts").rglob("*") if item.is_file()] == []
