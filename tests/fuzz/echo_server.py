"""`python -m tests.fuzz.echo_server PORT`: the gateway's HTTP server, answering with the request it read."""

from __future__ import annotations

import sys

import uvloop

from gateway.http.server import Limits, Server, bind
from gateway.http.server.exchange import Message, Receive, Send
from tests.gateway.http.server.conftest import living, read_body


async def tell(scope: Message, receive: Receive, send: Send) -> None:
    """Answers with method, path, query and body."""
    if (body := await read_body(receive)) is None:
        return
    told = b"%b %b %b\n%b" % (scope["method"].encode(), scope["raw_path"], scope["query_string"], body)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": told, "more_body": False})


def main() -> None:
    [listener] = bind("127.0.0.1", int(sys.argv[1]), 1)
    server = Server(living(tell), listener, Limits(), on_stop=lambda: None)
    uvloop.run(server.run())


if __name__ == "__main__":
    main()
