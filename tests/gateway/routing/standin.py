"""A copy with faults on demand, as its own process: `python -m tests.gateway.routing.standin --port N`.

The canned backend, which besides does what `POST /behave` last said:

    {"status": 503, "retry_after": "2", "code": "unavailable"}   refuses with that
    {"fault": "reset"}     breaks the connection without an answer
    {"fault": "empty"}     HTTP 200, then breaks off before the first byte
    {"seconds": 1.5}       waits so long first
    {"load": {...}}        answers `GET /load` so; else that is 404

`GET /calls` lists the models of the completions called since the last `POST /behave`; `GET /polls` counts the
`GET /load` since then.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Handler

from benchmarks.canned_upstream import create_app

BEHAVIOUR: Final = web.AppKey("behaviour", dict[str, Any])
CALLS: Final = web.AppKey("calls", list[str])
POLLS: Final = web.AppKey("polls", list[None])


@web.middleware
async def _misbehave(request: web.Request, handler: Handler) -> web.StreamResponse:
    if not request.path.startswith("/v1/"):
        return await handler(request)
    behaviour = request.app[BEHAVIOUR]
    request.app[CALLS].append((await request.json())["model"])
    await asyncio.sleep(behaviour.get("seconds", 0))
    if "status" in behaviour:
        headers = {"retry-after": behaviour["retry_after"]} if "retry_after" in behaviour else {}
        error = {"message": "as told", "type": "server_error", "code": behaviour.get("code"), "param": None}
        return web.json_response({"error": error}, status=behaviour["status"], headers=headers)
    if fault := behaviour.get("fault"):
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        if fault == "empty":
            await response.prepare(request)
        assert request.transport is not None
        request.transport.abort()
        return response
    return await handler(request)


async def _behave(request: web.Request) -> web.Response:
    behaviour = request.app[BEHAVIOUR]
    behaviour.clear()
    behaviour.update(await request.json())
    request.app[CALLS].clear()
    request.app[POLLS].clear()
    return web.Response()


async def _calls(request: web.Request) -> web.Response:
    return web.json_response(request.app[CALLS])


async def _polls(request: web.Request) -> web.Response:
    return web.json_response(len(request.app[POLLS]))


async def _load(request: web.Request) -> web.Response:
    request.app[POLLS].append(None)
    if (load := request.app[BEHAVIOUR].get("load")) is None:
        raise web.HTTPNotFound
    return web.json_response(load)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    app = create_app()
    app[BEHAVIOUR], app[CALLS], app[POLLS] = {}, [], []
    app.middlewares.append(_misbehave)
    app.router.add_post("/behave", _behave)
    app.router.add_get("/calls", _calls)
    app.router.add_get("/polls", _polls)
    app.router.add_get("/load", _load)
    port = parser.parse_args().port
    web.run_app(app, host="127.0.0.1", port=port, print=None, handler_cancellation=True)


if __name__ == "__main__":
    main()
