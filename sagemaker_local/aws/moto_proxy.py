"""All other AWS services at the same address, by a moto server in its own process."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import aiohttp
from aiohttp import web
from yarl import URL

from sagemaker_local.aws_errors import InternalFailure
from sagemaker_local.copies.tether import free_port, start_tethered
from sagemaker_local.state import ACCOUNT_ID

START_SECONDS: Final = 60.0
_HOP: Final = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "expect", "content-length"}
)


class MotoProxy:
    """A moto server, started at its first request; it ends with this process."""

    def __init__(self, client: aiohttp.ClientSession, log: Path) -> None:
        self._client, self._log = client, log
        self._process: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()
        self._port = 0

    async def forward(self, request: web.Request, body: bytes) -> web.Response:
        """Forward a request, with signature and host, from which moto reads region and bucket.

        Raises:
            InternalFailure: moto does not run.
        """
        status, received, content = await self.ask(
            request.method, request.raw_path, dict(request.headers), body
        )
        return answer(request, status, received, content)

    async def ask(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        """Send a request to moto, and return its answer's status, headers and body."""
        await self.start()
        # The path stays as the client wrote it: quoting it again would change keys.
        url = URL(f"http://127.0.0.1:{self._port}{path}", encoded=True)
        async with self._client.request(
            method, url, headers=passed_on(headers), data=body, allow_redirects=False, auto_decompress=False
        ) as received:
            return received.status, dict(received.headers), await received.read()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start moto. Raises InternalFailure if it does not become ready."""
        async with self._starting:
            if self.is_running:
                return
            self._port = free_port()
            server = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._port)]
            variables = {**os.environ, "MOTO_ACCOUNT_ID": ACCOUNT_ID}
            self._process = await start_tethered(server, variables, self._log)
            await self._until_ready(self._process)

    async def close(self) -> None:
        if self._process is not None and self.is_running:
            self._process.terminate()
            await self._process.wait()

    async def _until_ready(self, process: asyncio.subprocess.Process) -> None:
        try:
            async with asyncio.timeout(START_SECONDS):
                while process.returncode is None:
                    try:
                        async with self._client.get(f"http://127.0.0.1:{self._port}/moto-api/"):
                            return
                    except (aiohttp.ClientError, OSError):
                        await asyncio.sleep(0.05)
        except TimeoutError:
            process.kill()
        raise InternalFailure(f"moto did not start: {self._log.read_text(errors='replace')[-500:]}")


def passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers without those of a single connection."""
    return {name: value for name, value in headers.items() if name.lower() not in _HOP}


def answer(request: web.Request, status: int, received: Mapping[str, str], content: bytes) -> web.Response:
    """Return another server's response as the answer to `request`."""
    headers = passed_on(received)
    if request.method == "HEAD":
        # A HEAD response has no body, and its Content-Length is the requested information.
        length = {"Content-Length": received["Content-Length"]} if "Content-Length" in received else {}
        return web.Response(status=status, headers=headers | length)
    return web.Response(status=status, headers=headers, body=content)
