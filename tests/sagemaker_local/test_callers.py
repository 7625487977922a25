"""The server answers requests to other host names, and admin routes require the token."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer

from sagemaker_local.app import create
from sagemaker_local.config import Config
from sagemaker_local.state import ConfigError

TOKEN = {"Authorization": "Bearer open-sesame"}
CONFIG = Config(admin_token="open-sesame", allowed_hosts=("sagemaker",))
PATHS = (
    ("GET", "/_local/clock"),
    ("PUT", "/_local/clock"),
    ("PUT", "/_local/faults"),
    ("PUT", "/_local/rates"),
    ("PUT", "/_local/endpoints/e"),
    ("DELETE", "/_local/endpoints/e"),
    ("GET", "/_local/invocations"),
)


def call(config: Config, talk: Callable[[TestClient], Awaitable[None]]) -> None:  # type: ignore[type-arg]
    """Runs `talk` with a client of a server that starts no process."""

    async def run() -> None:
        async with TestClient(TestServer(await create(config, url="http://127.0.0.1:1"))) as client:
            await talk(client)

    asyncio.run(run())


def statuses(config: Config, headers: Mapping[str, str]) -> set[int]:
    found: set[int] = set()

    async def talk(client: TestClient) -> None:  # type: ignore[type-arg]
        for method, path in PATHS:
            async with client.request(method, path, headers=headers, data=b"{}") as answer:
                found.add(answer.status)

    call(config, talk)
    return found


@pytest.mark.parametrize(
    "value", ["", "open-sesame", "Basic open-sesame", "Bearer wrong", "Bearer ", "bearer \xfc"]
)
def test_admin_routes_want_the_token(value: str) -> None:
    assert statuses(CONFIG, {"Authorization": value}) == {401}


def test_without_a_token_of_its_own_the_server_has_no_admin_routes() -> None:
    assert statuses(Config(), TOKEN) == {403}


def test_the_token_opens_them_and_health_needs_none() -> None:
    async def talk(client: TestClient) -> None:  # type: ignore[type-arg]
        async with client.put("/_local/clock", json={"advance": 60}, headers=TOKEN) as answer:
            assert answer.status == 200
        async with client.get("/_local/health") as answer:
            assert (answer.status, await answer.json()) == (200, {"status": "ok"})

    call(CONFIG, talk)


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("127.0.0.1:8090", True),
        ("[::1]:8090", True),
        ("192.0.2.7", True),
        ("LocalHost:8090", True),
        ("bucket.localhost", True),
        ("sagemaker:8090", True),
        ("bucket.sagemaker:8090", True),
        ("rebound.example:8090", False),
        ("127.0.0.1.rebound.example", False),
        ("localhost.rebound.example", False),
        ("notlocalhost", False),
        ("evilsagemaker", False),
        ("localhost@rebound.example", False),
        ("[rebound.example]", False),
        ("", False),
    ],
)
def test_a_foreign_host_reaches_no_route(host: str, own: bool) -> None:
    async def talk(client: TestClient) -> None:  # type: ignore[type-arg]
        for method, path, right in (
            ("GET", "/_local/health", 200),
            ("GET", "/_local/clock", 200),
            ("POST", "/endpoints/e/invocations", 403),
            ("POST", "/", 403),
        ):
            headers = {"Host": host, **TOKEN} if path.startswith("/_local") else {"Host": host}
            async with client.request(method, path, headers=headers) as answer:
                text = await answer.text()
                assert ("this server is not" in text) == (not own), (path, text)
                assert answer.status == (right if own else 403)

    call(CONFIG, talk)


@pytest.mark.parametrize(
    "wrong",
    [{"admin_token": ""}, {"admin_token": 7}, {"allowed_hosts": "sagemaker"}, {"allowed_hosts": [""]}],
)
def test_malformed_settings_are_refused(wrong: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(wrong))
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Config.load(path, {})


def test_the_environment_names_the_token() -> None:
    assert Config.load(None, {"SAGEMAKER_LOCAL_ADMIN_TOKEN": "t"}).admin_token == "t"
    assert Config.load(None, {"SAGEMAKER_LOCAL_ADMIN_TOKEN": ""}).admin_token is None
