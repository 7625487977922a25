"""Adapters on servers with vLLM's routes: loaded on demand, bounded, and refused loads tried elsewhere.

The server gives vLLM 0.32's answers, as it gave them to the same calls.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from aiohttp import web
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from contracts.adapters.reference import AdapterRef
from contracts.base_routes import AdapterHomes, CopyRoute
from contracts.route_table import AdapterRoute
from contracts.server_credentials import ServerCredentials
from controlplane.deployments.models.credentials import credentials_seal
from gateway.api.schema import parse
from gateway.backends import copy_locks
from gateway.backends.base import BackendRequest
from gateway.backends.openai_http import OpenAIHttpBackend
from gateway.backends.upstream import Upstream
from gateway.errors import EngineDied, UpstreamBusy, UpstreamUnreachable
from gateway.routing import resolve
from gateway.routing.copy_headers import CopyHeaders
from gateway.routing.fleet import Copy, Fleet
from tests.conftest import free_port
from tests.gateway.conftest import reference, route_table

FLEET_TOKEN = "fleet-token"
DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


@dataclass
class Server:
    """A server that keeps adapters as vLLM does.

    Attributes:
        refuses: status and body of each load; None loads.
        taken: another gateway has just loaded the adapter of each load.
        keeps: adapters that it does not unload.
        most: adapters that it had loaded at once.
        lists: it has a list of models.
        repeated: loads of adapters that it had loaded already.
    """

    url: str = ""
    loaded: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    unloads: list[str] = field(default_factory=list)
    refuses: tuple[int, str] | None = None
    taken: bool = False
    dead: bool = False
    keeps: tuple[str, ...] = ()
    most: int = 0
    lists: bool = True
    repeated: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    async def complete(self, http: web.Request) -> web.Response:
        body = await http.json()
        self.headers.append({name.lower(): value for name, value in http.headers.items()})
        if self.dead:
            return _error(500, DEAD, "InternalServerError")
        if body["model"] not in ("base", *self.loaded):
            return _error(404, f"The model `{body['model']}` does not exist.", "NotFoundError")
        return web.json_response({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})

    async def models(self, http: web.Request) -> web.Response:
        if not self.lists:
            return web.json_response({"detail": "Not Found"}, status=404)
        return web.json_response({"data": [{"id": name} for name in ("base", *self.loaded)]})

    async def load(self, http: web.Request) -> web.Response:
        name = (await http.json())["lora_name"]
        self.loads.append(name)
        if self.refuses is not None:
            return _error(*self.refuses, "InternalServerError")
        await asyncio.sleep(0)  # other gateways' requests come in between
        if self.taken:
            self.loaded.append(name)
        if name in self.loaded:
            self.repeated.append(name)
            return _error(400, f"The lora adapter '{name}' has already been loaded.", "InvalidUserInput")
        self.loaded.append(name)
        self.most = max(self.most, len(self.loaded))
        return web.Response(text="Success")

    async def unload(self, http: web.Request) -> web.Response:
        name = (await http.json())["lora_name"]
        self.unloads.append(name)
        if name in self.keeps:
            return _error(500, "busy", "InternalServerError")
        if name not in self.loaded:
            return _error(404, f"The lora adapter '{name}' cannot be found.", "NotFoundError")
        self.loaded.remove(name)
        return web.Response(text="Success")


def _error(status: int, message: str, kind: str) -> web.Response:
    error = {"message": message, "type": kind, "param": None, "code": status}
    return web.json_response({"error": error}, status=status)


@asynccontextmanager
async def serving(server: Server, redis: Redis | None = None) -> AsyncIterator[OpenAIHttpBackend]:
    app = web.Application()
    app.router.add_post("/v1/completions", server.complete)
    app.router.add_get("/v1/models", server.models)
    app.router.add_post("/v1/load_lora_adapter", server.load)
    app.router.add_post("/v1/unload_lora_adapter", server.unload)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    backend = gateway(redis)
    try:
        yield backend
    finally:
        await backend.close()
        await runner.cleanup()


def gateway(redis: Redis | None = None) -> OpenAIHttpBackend:
    return OpenAIHttpBackend(Upstream(), CopyHeaders(FLEET_TOKEN, "installation"), Fleet(), redis)


def adapter(number: int) -> AdapterRef:
    return reference("acme", f"bot{number}")


async def ask(
    backend: OpenAIHttpBackend, server: Server, ref: AdapterRef, placed: str = "", **copy: Any
) -> None:
    table = route_table(server.url)
    base = table.bases["base"]
    homes = {placed: AdapterHomes(("copy-1",))} if placed else {}
    table = replace(
        table,
        bases={"base": replace(base, homes=homes)},
        adapters={"acme": {"bot": AdapterRoute("base", 1, {1: ref})}},
    )
    call = parse("/v1/completions", json.dumps({"model": "bot", "prompt": "hi", "max_tokens": 2}).encode())
    route = CopyRoute("copy-1", "openai_http", server.url, **{"loads_adapters": True, **copy})
    resolution = resolve(table, "acme", "bot", "subject")
    stream = await backend.stream(BackendRequest(call, resolution, route, "request-1", "aa11", "acme"))
    try:
        while await stream.read():
            pass
    finally:
        stream.close()


def test_no_more_adapters_stay_loaded_than_the_servers_cache_holds() -> None:
    async def work() -> None:
        server = Server()
        async with serving(server) as backend:
            for number in (0, 1, 0, 2):
                await ask(backend, server, adapter(number), max_adapters=2)
            assert server.unloads == [adapter(1).name], "the one that was used longest ago"
            await ask(backend, server, adapter(1), max_adapters=2)
            assert server.unloads[1] == adapter(0).name
            assert sorted(server.loaded) == [adapter(1).name, adapter(2).name]
            others = [ask(backend, server, adapter(number), max_adapters=2) for number in range(3, 9)]
            await asyncio.gather(*others)
        assert server.most == 2, "an unload precedes each load, of requests at the same time too"

    asyncio.run(work())


async def ask_by_two_gateways(server: Server, redis: Redis) -> None:
    """Ask for eight adapters, by turns of two gateways, at the same time."""
    async with serving(server, redis) as first:
        second = gateway(redis)
        asks = [ask((first, second)[n % 2], server, adapter(n // 2), max_adapters=2) for n in range(8)]
        answers = await asyncio.gather(*asks, return_exceptions=True)
        # An adapter may be unloaded for another one before its request is repeated; the client retries.
        assert all(answer is None or isinstance(answer, UpstreamBusy) for answer in answers), answers
        await ask(second, server, adapter(9), max_adapters=2)
        await second.close()
    await redis.aclose()


def test_several_gateways_load_no_more_than_the_servers_cache_holds(redis_url: str) -> None:
    server = Server()
    asyncio.run(ask_by_two_gateways(server, Redis.from_url(redis_url)))
    assert server.most == 2
    assert server.loaded[-1] == adapter(9).name
    assert server.repeated == [], "a load during the wait for the lock serves both gateways"


def test_without_redis_gateways_still_load_adapters() -> None:
    server = Server()
    away = Redis.from_url(f"redis://127.0.0.1:{free_port()}", retry=Retry(NoBackoff(), 0))
    asyncio.run(ask_by_two_gateways(server, away))
    assert server.most in (2, 3), "each gateway beyond the first may exceed the bound by one"
    assert server.loaded[-1] == adapter(9).name


def test_a_copy_whose_lock_another_gateway_holds_is_passed_over(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_locks, "WAIT_SECONDS", 0.0)

    async def work() -> None:
        server, redis = Server(), Redis.from_url(redis_url)
        async with serving(server, redis) as backend, copy_locks.CopyLocks(redis).hold("copy-1"):
            with pytest.raises(UpstreamBusy) as caught:
                await ask(backend, server, adapter(0), max_adapters=2)
            assert not caught.value.of_copy
            assert server.loads == []
        async with serving(server, redis) as backend:
            await ask(backend, server, adapter(0), max_adapters=2)
        assert server.loads == [adapter(0).name]
        (ttl,) = [await redis.ttl(key) for key in await redis.keys("*")] or [-2]
        assert ttl == -2, "the lock is released"
        await redis.aclose()

    asyncio.run(work())


def test_a_server_that_lists_nothing_is_bounded_by_what_the_gateway_knows() -> None:
    async def work() -> None:
        server = Server(lists=False)
        async with serving(server) as backend:
            for number in (0, 1, 2):
                await ask(backend, server, adapter(number), max_adapters=2)
        assert server.most == 2

    asyncio.run(work())


@pytest.mark.parametrize("cause", ["refused", "placed"])
def test_a_full_server_that_has_to_keep_its_adapters_gets_no_further_one(cause: str) -> None:
    async def work() -> None:
        server = Server(keeps=(adapter(0).name,) if cause == "refused" else ())
        placed = adapter(0).name if cause == "placed" else ""
        async with serving(server) as backend:
            await ask(backend, server, adapter(0), placed, max_adapters=1)
            with pytest.raises(UpstreamBusy) as caught:
                await ask(backend, server, adapter(1), placed, max_adapters=1)
            assert not caught.value.of_copy, "its own adapter is still served"
            await ask(backend, server, adapter(0), placed, max_adapters=1)
        assert server.loaded == [adapter(0).name]

    asyncio.run(work())


def test_a_list_that_was_requested_before_a_load_does_not_hide_it() -> None:
    now = 0.0
    copy = Copy("copy-1", lambda: now, random.Random(1))
    asked_at, now = now, 1.0
    copy.loaded("new")
    copy.listed(frozenset({"old"}), (), asked_at=asked_at)
    assert copy.names == {"old", "new"}
    now = 2.0
    copy.unloaded("old")
    copy.listed(frozenset({"old", "new"}), (), asked_at=1.5)
    assert copy.names == {"new"}
    copy.listed(frozenset({"old"}), (), asked_at=3.0)
    assert copy.names == {"old"}, "a later list is newer than both"


def test_a_placed_adapter_stays_and_without_a_bound_all_do() -> None:
    async def work() -> None:
        server = Server()
        async with serving(server) as backend:
            for number in (0, 1, 2):
                await ask(backend, server, adapter(number), adapter(0).name, max_adapters=2)
            assert server.unloads == [adapter(1).name]
            for number in (3, 4, 5):
                await ask(backend, server, adapter(number))
            assert server.unloads == [adapter(1).name]

    asyncio.run(work())


def test_a_load_by_another_gateway_serves_this_ones_request_too() -> None:
    async def work() -> list[str]:
        server = Server(taken=True)
        async with serving(server) as backend:
            await ask(backend, server, adapter(0))
        return server.loads

    assert asyncio.run(work()) == [adapter(0).name]


@pytest.mark.parametrize(
    "refusal",
    [
        (404, "Loading lora bot failed: No adapter found for <path>"),
        (500, "LoRA rank 64 is greater than max_lora_rank 16."),
    ],
)
def test_an_adapter_that_cannot_be_loaded_is_tried_elsewhere_and_not_asked_for_at_once(
    refusal: tuple[int, str],
) -> None:
    async def work() -> list[str]:
        server = Server(refuses=refusal)
        async with serving(server) as backend:
            for _ in range(3):
                with pytest.raises(UpstreamBusy) as caught:
                    await ask(backend, server, adapter(0))
                assert not caught.value.of_copy, "other adapters' requests still go to the copy"
            server.refuses = None
            await ask(backend, server, adapter(1))
        return server.loads

    assert asyncio.run(work()) == [adapter(0).name, adapter(1).name]


@pytest.mark.parametrize("by", ["request", "load"])
def test_an_engine_that_dies_with_a_request_or_its_load_is_told_from_other_failures(by: str) -> None:
    async def work() -> None:
        server = Server(dead=True) if by == "request" else Server(refuses=(500, DEAD))
        async with serving(server) as backend:
            with pytest.raises(EngineDied):
                await ask(backend, server, adapter(0))
        assert server.loads == ([] if by == "request" else [adapter(0).name])

    asyncio.run(work())


def test_a_copys_own_token_and_headers_replace_the_installations() -> None:
    own = ServerCredentials("own-token", {"x-tenant": "us"})

    async def work() -> list[dict[str, str]]:
        server = Server(loaded=[adapter(0).name])
        async with serving(server) as backend:
            await ask(backend, server, adapter(0))
            sealed = credentials_seal(own, fleet_token=FLEET_TOKEN, copy_id="copy-1")
            assert "own-token" not in sealed
            await ask(backend, server, adapter(0), credentials=sealed)
            for wrong in (
                credentials_seal(own, fleet_token="another", copy_id="copy-1"),
                credentials_seal(own, fleet_token=FLEET_TOKEN, copy_id="copy-2"),
            ):
                with pytest.raises(UpstreamUnreachable):
                    await ask(backend, server, adapter(0), credentials=wrong)
        return server.headers

    first, second = asyncio.run(work())
    assert (first["authorization"], "x-tenant" in first) == ("Bearer installation", False)
    assert (second["authorization"], second["x-tenant"]) == ("Bearer own-token", "us")
