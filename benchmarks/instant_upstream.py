"""A backend that answers at once with fixed bytes, so that what is measured is the gateway before it.

`python -m benchmarks.instant_upstream --port N`: any POST gets one JSON answer, or, when its body has
`"stream":true`, 64 token events with usage in one write. Plain asyncio protocol on uvloop: several
times faster than any gateway here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any, cast

import uvloop

EVENTS = 64


def _usage(completion: int) -> dict[str, Any]:
    details = {"cached_tokens": 0}
    total = 11 + completion
    return {
        "prompt_tokens": 11,
        "completion_tokens": completion,
        "total_tokens": total,
        "prompt_tokens_details": details,
    }


def _event(choices: list[dict[str, Any]], tokens: int) -> bytes:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "base"}
    event = {**head, "choices": choices, "usage": _usage(tokens)}
    return b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"


def event_bytes() -> bytes:
    events = [
        _event([{"index": 0, "delta": {"content": f"word{number} "}, "finish_reason": None}], number + 1)
        for number in range(EVENTS)
    ]
    return b"".join([*events, _event([], EVENTS), b"data: [DONE]\n\n"])


def _answer() -> bytes:
    message = {"role": "assistant", "content": "word " * EVENTS}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "base"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return json.dumps({**head, "choices": [choice], "usage": _usage(EVENTS)}).encode()


def _models() -> bytes:
    model = {"id": "base", "object": "model", "created": 1, "owned_by": "bench"}
    return json.dumps({"object": "list", "data": [model]}).encode()


def _plain(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    return head + body


def _chunked(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


class InstantUpstream(asyncio.Protocol):
    """Reads requests with a content-length; answers each as soon as it is whole."""

    plain, streamed, models = _plain(_answer()), _chunked(event_bytes()), _plain(_models())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it
        self._data = b""

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n") + 4) >= 4:
            head = self._data[:end].lower()
            at = head.find(b"content-length:")
            size = int(head[at + 15 : head.find(b"\r", at)]) if at >= 0 else 0
            if len(self._data) < end + size:
                return
            body, self._data = self._data[end : end + size], self._data[end + size :]
            streams = b'"stream":true' in body or b'"stream": true' in body
            plain = self.models if head.startswith(b"get /v1/models") else self.plain
            self._transport.write(self.streamed if streams else plain)


async def _serve(protocol: type[InstantUpstream], port: int) -> None:
    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", port)
    async with server:
        await server.serve_forever()


def main(protocol: type[InstantUpstream] = InstantUpstream) -> None:
    """Serve until the process ends; subclasses have other answers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    uvloop.run(_serve(protocol, parser.parse_args().port))


if __name__ == "__main__":
    main()
