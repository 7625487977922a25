"""A server as a process of its own that a request for one model kills: `python -m ... <port> <model>`."""

from __future__ import annotations

import os
import signal
import sys

from aiohttp import web
from aiohttp.typedefs import Handler

from benchmarks.canned_upstream import create_app


async def metrics(request: web.Request) -> web.Response:
    return web.Response(text="vllm:num_requests_running 0.0\nvllm:num_requests_waiting 0.0\n")


def main() -> None:
    port, deadly = int(sys.argv[1]), sys.argv[2]

    @web.middleware
    async def kill(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.can_read_body and deadly in await request.text():
            os.kill(os.getpid(), signal.SIGKILL)
        return await handler(request)

    app = create_app()
    app.middlewares.append(kill)
    app.router.add_get("/metrics", metrics)
    web.run_app(app, host="127.0.0.1", port=port, print=None)


if __name__ == "__main__":
    main()
