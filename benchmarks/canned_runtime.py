"""SageMaker's runtime with one fixed answer: `python -m benchmarks.canned_runtime --port N`.

Any POST gets an event stream of 64 parts, a JSON line each, in one write. It checks no signature: what is
measured is the caller.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import cast

import uvloop

from benchmarks.instant_upstream import event_bytes
from sagemaker_local import frames


def _answer() -> bytes:
    lines = [event.removeprefix(b"data: ") for event in event_bytes().split(b"\n\n") if event]
    lines[-1] = b""
    body = b"".join(frames.part(line + b"\n") for line in lines)
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/vnd.amazon.eventstream\r\n"
        b"x-amzn-sagemaker-content-type: application/jsonlines\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    return head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


ANSWER = _answer()


class _Runtime(asyncio.Protocol):
    """One connection: reads whole requests, answers each."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._data = b""

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = self._data[:end].lower()
            at = head.find(b"content-length: ")
            length = int(head[at + 16 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._data) < end + 4 + length:
                return
            self._data = self._data[end + 4 + length :]
            self._transport.write(ANSWER)


async def _serve(port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Runtime, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    uvloop.run(_serve(parser.parse_args().port))
