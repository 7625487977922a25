"""Source of the gateway's AWS keys: botocore's own search, in a thread."""

from __future__ import annotations

import asyncio
import datetime
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gateway.http.aws import credentials as module
from gateway.http.aws.credentials import BotocoreCredentials, NoCredentials
from gateway.http.aws.sigv4 import Credentials


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove the credentials of the machine that runs the tests."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


class _Role(BaseHTTPRequestHandler):
    """A container's credential endpoint, as ECS and EKS have it."""

    asked = 0
    may_answer = threading.Event()

    def do_GET(self) -> None:
        type(self).asked += 1
        assert self.may_answer.wait(60)
        expires = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
        body = {
            "AccessKeyId": f"ASIA{self.asked}",
            "SecretAccessKey": "s",
            "Token": f"token-{self.asked}",
            "Expiration": expires.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def role(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[_Role]]:
    class Role(_Role):
        may_answer = threading.Event()

    Role.may_answer.set()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Role)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://127.0.0.1:{server.server_port}/")
    yield Role
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    assert asyncio.run(BotocoreCredentials().current()) == Credentials("AKID", "s", None)


def test_a_profile(tmp_path: Path) -> None:
    text = "[default]\naws_access_key_id = PROFILE\naws_secret_access_key = p\naws_session_token = t\n"
    (tmp_path / "credentials").write_text(text)
    assert asyncio.run(BotocoreCredentials().current()) == Credentials("PROFILE", "p", "t")


def test_a_containers_role_is_asked_once_for_many_requests_and_off_the_loop(role: type[_Role]) -> None:
    role.may_answer.clear()

    async def work() -> list[Credentials]:
        source = BotocoreCredentials()
        current = asyncio.gather(*(source.current() for _ in range(20)))
        async with asyncio.timeout(60):
            while not role.asked:  # noqa: ASYNC110 - the question comes from a thread
                await asyncio.sleep(0.01)
        assert not current.done()
        # Only a loop that runs meanwhile lets the role answer.
        role.may_answer.set()
        return await current

    assert set(asyncio.run(work())) == {Credentials("ASIA1", "s", "token-1")}
    assert role.asked == 1


def test_old_credentials_are_renewed_beside_the_requests(
    role: type[_Role], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fresh keys: no refresh. Old keys: used while a refresh runs. Expired keys: the request waits."""

    async def work() -> None:
        source = BotocoreCredentials()
        first = await source.current()
        source._session = None  # botocore's own cache of the role's answer, which lasts its hour
        assert await source.current() is first
        assert role.asked == 1
        monkeypatch.setattr(module, "FRESH_SECONDS", 0.0)
        assert await source.current() is first
        assert source._renewal is not None
        await source._renewal
        assert role.asked == 2
        source._session = None
        source.expired()
        assert (await source.current()).access_key == "ASIA3"

    asyncio.run(work())


def test_without_credentials_a_copy_is_unreachable_and_the_log_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None:
        source = BotocoreCredentials()
        with pytest.raises(NoCredentials):
            await source.current()
        await asyncio.sleep(0)

    asyncio.run(work())
    assert "AWS_ACCESS_KEY_ID" in caplog.text
