"""The ceiling for a gateway in Python: raw ASGI and aiohttp under granian, passing bytes on, no more.

`python -m benchmarks.passthrough --port N --upstream URL`; `--own-server` puts it under the gateway's server.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import aiohttp
import uvloop
from granian import Granian
from granian.constants import HTTPModes, Interfaces, Loops

from gateway.http.server import Limits, Server, bind

Message = MutableMapping[str, Any]


class Passthrough:
    """One POST in, one POST out, coalesced as the gateway coalesces.

    The gateway's server also begins and ends the application's lifespan; granian does not here.
    """

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._session: aiohttp.ClientSession | None = None

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            return
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {"content-type": "application/json"}
        async with self._session.post(self._upstream + scope["path"], data=body, headers=headers) as answer:
            kind = answer.headers["content-type"].encode()
            start = {"type": "http.response.start", "status": answer.status}
            await send({**start, "headers": [(b"content-type", kind)]})
            while part := await answer.content.readany():
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def application() -> Passthrough:
    return Passthrough(os.environ["PASSTHROUGH_UPSTREAM"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--upstream", required=True)
    parser.add_argument("--own-server", action="store_true")
    arguments = parser.parse_args()
    os.environ["PASSTHROUGH_UPSTREAM"] = arguments.upstream
    if arguments.own_server:
        [listener] = bind("127.0.0.1", arguments.port, 1)
        uvloop.run(Server(application(), listener, Limits(), on_stop=lambda: None).run())
        return
    Granian(
        "benchmarks.passthrough:application",
        address="127.0.0.1",
        port=arguments.port,
        interface=Interfaces.ASGINL,
        loop=Loops.uvloop,
        http=HTTPModes.http1,
        websockets=False,
        factory=True,
        log_access=False,
    ).serve()


if __name__ == "__main__":
    main()
