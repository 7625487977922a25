"""Copies with faults on demand, as servers in a thread of the test's own process."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from benchmarks.canned_upstream import create_app
from tests.conftest import free_port
from tests.waiting import eventually

T = TypeVar("T")


class ServerThread:
    """An event loop in a thread, for servers that a test calls from outside of it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the thread and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        # Closed connections need a step of the loop to let go of their sockets.
        self.run(asyncio.sleep(0))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class StandIn:
    """The canned backend with faults set by `behave`.

    behave(status=503, retry_after="2", code="unavailable") refuses with that;
    behave(fault="reset") breaks the connection without an answer;
    behave(fault="empty") answers HTTP 200, then breaks off before the first byte;
    behave(fault="engine_died") answers as vLLM does for each request that its engine died with; with
    model="..." only requests for that model end the engine;
    behave(load={...}) answers `GET /load` so, which else is 404.
    """

    def __init__(self, thread: ServerThread) -> None:
        self._thread = thread
        self._port = free_port()
        self._behaviour: dict[str, Any] = {}
        self._num_calls = self._num_polls = 0
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Listen, again after `kill` on the same port."""
        self._thread.run(self._start())

    def kill(self) -> None:
        """Close the port and break every connection."""
        self._thread.run(self._stop())

    def behave(self, **behaviour: Any) -> None:
        self._thread.run(self._behave(behaviour))

    def calls(self) -> int:
        """Number of completions called since `behave`."""
        return self._num_calls

    def wait_heard(self) -> None:
        """Wait until the gateway knows the `load` of `behave`: it has then polled once more."""
        eventually(lambda: self._num_polls >= 2)

    async def _start(self) -> None:
        app = create_app()
        app.middlewares.append(self._misbehave)
        app.router.add_get("/load", self._load)
        # Of 0 seconds aiohttp makes no limit: a connection that is just being opened would be waited for.
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.05)
        await self._runner.setup()
        self._listener = socket.create_server(("127.0.0.1", self._port))
        await web.SockSite(self._runner, self._listener).start()

    async def _stop(self) -> None:
        if self._runner is not None:
            # asyncio drops a connection that it has accepted when its server closes before a step later, and
            # never closes its socket: so nothing is accepted any more, and a few steps follow.
            asyncio.get_running_loop().remove_reader(self._listener)
            for _ in range(4):
                await asyncio.sleep(0)
            await self._runner.cleanup()
            self._runner = None

    async def _behave(self, behaviour: dict[str, Any]) -> None:
        self._behaviour = behaviour
        self._num_calls = self._num_polls = 0

    @property
    def _misbehave(self) -> Middleware:
        @web.middleware
        async def misbehave(request: web.Request, handler: Handler) -> web.StreamResponse:
            if request.path.startswith("/v1/"):
                self._num_calls += 1
                if self._behaviour.get("model", "") not in await request.text():
                    return await handler(request)
                if "status" in self._behaviour:
                    return self._refusal()
                if self._behaviour.get("fault") == "engine_died":
                    return await _engine_died(request)
                if fault := self._behaviour.get("fault"):
                    return await _broken(request, empty=fault == "empty")
            return await handler(request)

        return misbehave

    def _refusal(self) -> web.Response:
        told = self._behaviour
        headers = {"retry-after": told["retry_after"]} if "retry_after" in told else {}
        error = {"message": "as told", "type": "server_error", "code": told.get("code"), "param": None}
        return web.json_response({"error": error}, status=told["status"], headers=headers)

    async def _load(self, request: web.Request) -> web.Response:
        self._num_polls += 1
        if (load := self._behaviour.get("load")) is None:
            raise web.HTTPNotFound
        return web.json_response(load)


async def _engine_died(request: web.Request) -> web.StreamResponse:
    text = "EngineCore encountered an issue. See stack trace (above) for the root cause."
    error = {"message": text, "type": "InternalServerError", "param": None, "code": 500}
    if not (await request.json()).get("stream"):
        return web.json_response({"error": error}, status=500)
    # vLLM has begun its stream before the engine has the request.
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b"data: " + json.dumps({"error": error}).encode() + b"\n\ndata: [DONE]\n\n")
    return response


async def _broken(request: web.Request, *, empty: bool) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    if empty:
        await response.prepare(request)
    assert request.transport is not None
    request.transport.abort()
    return response
