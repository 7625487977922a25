"""A vLLM server that is killed and started again loads its adapters again, with the next requests."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from contracts.route_table import RouteTable
from gateway.routing.breaker import FAILURES_IN_A_ROW
from tests.conftest import free_port
from tests.gateway.conftest import ControlPlane, GatewayProcess, reference, route_table
from tests.gateway.routing.standin import ServerThread
from tests.gateway.test_app import ask, post
from tests.waiting import eventually

METRICS = "vllm:num_requests_running 0.0\nvllm:num_requests_waiting 0.0\n"
BOT = reference("acme", "bot").name


class VllmServer:
    """vLLM's routes for adapters and polls; what was loaded goes with the process.

    Attributes:
        loads: names of the adapters that it loaded, in all its lives.
        polls: times that its health was asked for since its last start.
    """

    def __init__(self, thread: ServerThread) -> None:
        self._thread, self._port = thread, free_port()
        self.loads: list[str] = []
        self.polls = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._models, self.polls = ["base"], 0
        self._thread.run(self._start())

    def kill(self) -> None:
        self._thread.run(self._stop())

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._list)
        app.router.add_post("/v1/load_lora_adapter", self._load)
        app.router.add_post("/v1/chat/completions", self._chat)
        self._runner = web.AppRunner(app, shutdown_timeout=0.05)
        await self._runner.setup()
        self._listener = socket.create_server(("127.0.0.1", self._port))
        await web.SockSite(self._runner, self._listener).start()

    async def _stop(self) -> None:
        # As in `standin.py`: asyncio would drop a connection that it accepts just now, and leave it open.
        asyncio.get_running_loop().remove_reader(self._listener)
        for _ in range(4):
            await asyncio.sleep(0)
        await self._runner.cleanup()

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=METRICS)

    async def _health(self, request: web.Request) -> web.Response:
        self.polls += 1
        return web.Response()

    async def _list(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": name} for name in self._models]})

    async def _load(self, request: web.Request) -> web.Response:
        name = (await request.json())["lora_name"]
        self.loads.append(name)
        self._models.append(name)
        return web.Response(text="Success")

    async def _chat(self, request: web.Request) -> web.Response:
        model = (await request.json())["model"]
        if model not in self._models:
            error = {"message": f"The model `{model}` does not exist.", "type": "NotFoundError", "code": 404}
            return web.json_response({"error": error}, status=404)
        message: dict[str, Any] = {"role": "assistant", "content": "Arr"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
        return web.json_response({"id": "c", "model": model, "choices": [choice], "usage": usage})


@pytest.fixture
def server() -> Iterator[VllmServer]:
    thread = ServerThread()
    found = VllmServer(thread)
    found.start()
    yield found
    found.kill()
    thread.close()


def routes(server: VllmServer) -> RouteTable:
    table = route_table(server.url, kind="openai_http", name=f"heals-{server.url[-5:]}")
    base = table.bases["base"]
    copies = tuple(replace(copy, loads_adapters=True) for copy in base.copies)
    return replace(table, bases={"base": replace(base, copies=copies)})


def test_a_killed_server_serves_its_adapters_again_within_a_few_polls(
    pooled_gateway: GatewayProcess, control_plane: ControlPlane, server: VllmServer
) -> None:
    body = {"model": "bot", "messages": ask()}
    control_plane.replace(pooled_gateway, routes(server))
    assert post(pooled_gateway, body).status_code == 200
    assert server.loads == [BOT]
    server.kill()
    # More failures than open the breaker.
    failed = [post(pooled_gateway, body).status_code for _ in range(2 * FAILURES_IN_A_ROW)]
    assert set(failed) <= {502, 503}
    server.start()
    eventually(lambda: post(pooled_gateway, body).status_code == 200)
    assert server.loads == [BOT, BOT]
    # Polls are a second apart: so it healed in less than five.
    assert server.polls <= 4
