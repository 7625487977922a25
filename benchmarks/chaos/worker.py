"""A real worker, and before it a relay that books what it generates: `python -m benchmarks.chaos.worker`.

    --port N --ledger FILE --model FOLDER

Lines of the ledger are `<request id> <more tokens> <prompt tokens> <cached tokens> <tokens so far>`, by the
usage that the worker reports, each written before the bytes that report it go on. A kill ends the worker too.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from typing import Any, Final

import aiohttp
from aiohttp import web

from benchmarks.chaos.plant import MODEL
from benchmarks.processes import free_port

_USAGE: Final = re.compile(rb'"usage":\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')
_PASSED: Final = frozenset(("authorization", "content-type", "traceparent", "x-request-id"))


class Relay:
    """Passes on every request to the worker behind it."""

    def __init__(self, worker: str, ledger: str) -> None:
        self._worker = worker
        self._ledger = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._session: aiohttp.ClientSession | None = None

    async def serve(self, request: web.Request) -> web.StreamResponse:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None)
            self._session = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))
        headers = {name: value for name, value in request.headers.items() if name.lower() in _PASSED}
        try:
            answer = await self._session.request(
                request.method, self._worker + request.path_qs, data=await request.read(), headers=headers
            )
        except aiohttp.ClientConnectionError:
            # Refused as by a worker that has not started.
            return web.Response(status=503)
        async with answer:
            response = web.StreamResponse(status=answer.status)
            response.content_type = answer.content_type
            await response.prepare(request)
            await self._pass(answer, response, request.headers.get("x-request-id", ""))
            await response.write_eof()
            return response

    async def _pass(
        self, answer: aiohttp.ClientResponse, response: web.StreamResponse, request_id: str
    ) -> None:
        """Whole lines go on, after what they report has been booked."""
        rest, booked = b"", 0
        while True:
            part = await answer.content.readany()
            block = rest + part
            end = block.rfind(b"\n") + 1 if part else len(block)
            block, rest = block[:end], block[end:]
            if request_id and answer.status == 200:
                booked = self.book(request_id, block, booked)
            if block:
                await response.write(block)
            if not part:
                return

    def book(self, request_id: str, block: bytes, booked: int) -> int:
        """Books what `block` reports beyond `booked` tokens; returns the tokens booked by then."""
        if not (found := _USAGE.findall(block)):
            return booked
        usage: dict[str, Any] = json.loads(found[-1])
        tokens = int(usage.get("completion_tokens", 0))
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        line = f"{request_id} {tokens - booked} {usage['prompt_tokens']} {cached} {tokens}\n"
        os.write(self._ledger, line.encode())
        return tokens


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos.worker", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ledger", required=True)
    parser.add_argument("--model", required=True)
    options = parser.parse_args()
    port = free_port()
    flags = f"--served-model-name {MODEL} --port {port} --memory-gib 0.5".split()
    worker = subprocess.Popen([sys.executable, "-m", "worker_engine", "--model", options.model, *flags])
    app = web.Application(handler_args={"access_log": None}, client_max_size=1 << 26)
    app.router.add_route("*", "/{path:.*}", Relay(f"http://127.0.0.1:{port}", options.ledger).serve)
    try:
        web.run_app(app, host="127.0.0.1", port=options.port, print=None, handler_cancellation=True)
    finally:
        worker.terminate()
        worker.wait()


if __name__ == "__main__":
    main()
