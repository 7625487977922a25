"""The bundled worker behind a family's front: its process and its streams."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from sagemaker_local.containers.contract import WorkerSettings
from sagemaker_local.copies.artifacts import link_tree
from sagemaker_local.copies.tether import free_port

NAME: Final = "model"
"""The base model's name at the worker."""


class EngineRefused(Exception):
    """The worker refused a request; `status` and the text are its own."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(slots=True)
class Engine:
    """A worker's process."""

    settings: WorkerSettings
    process: asyncio.subprocess.Process
    port: int
    client: aiohttp.ClientSession

    @classmethod
    async def start(cls, settings: WorkerSettings, adapters: Path, cache: Path) -> Engine:
        """Start the worker; it may not serve yet. It ends with this process."""
        for name, folder in settings.adapters.items():
            await asyncio.to_thread(link_tree, folder, adapters / name)
        port = free_port()
        command = [
            *(sys.executable, "-m", "sagemaker_local.copies.tether", str(os.getpid())),
            *(sys.executable, "-m", "worker_engine", "serve", "--model", str(settings.model)),
            *("--served-model-name", NAME, "--host", "127.0.0.1", "--port", str(port)),
            *("--adapters-dir", str(adapters), "--adapter-cache-dir", str(cache)),
            *settings.flags,
        ]
        environment = {**os.environ, "SAGEMAKER_BIND_TO_PORT": str(port)}
        process = await asyncio.create_subprocess_exec(*command, env=environment)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
        return cls(settings, process, port, aiohttp.ClientSession(timeout=timeout))

    async def answers(self) -> bool:
        """Return True if the worker passes its health check."""
        try:
            async with self.client.get(f"http://127.0.0.1:{self.port}/ping") as answer:
                return answer.status == 200
        except (aiohttp.ClientError, OSError):
            return False

    async def ended(self) -> None:
        """Return when the worker's process has ended."""
        await self.process.wait()

    def name_of(self, adapter: object) -> str:
        """Return the worker's name for a loaded adapter; the base model's for any other value."""
        return adapter if isinstance(adapter, str) and adapter in self.settings.adapters else NAME

    @asynccontextmanager
    async def stream(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[AsyncIterator[Any]]:
        """Yield the JSON values of a streamed answer; an error within it ends it with EngineRefused.

        Raises:
            EngineRefused: the worker refused the request.
        """
        options = {"include_usage": True, "continuous_usage_stats": True}
        asked = {**body, "stream": True, "stream_options": options, "return_token_ids": True}
        async with self.client.post(f"http://127.0.0.1:{self.port}{path}", json=asked) as answer:
            if answer.status != 200:
                raise EngineRefused(answer.status, _message(await answer.text()))
            yield _values(answer)

    async def stop(self) -> None:
        """End the worker."""
        if self.process.returncode is None:
            self.process.terminate()
            await self.process.wait()
        await self.client.close()


async def _values(answer: aiohttp.ClientResponse) -> AsyncIterator[Any]:
    async for line in answer.content:
        data = line.strip().removeprefix(b"data: ")
        if not line.startswith(b"data: ") or data == b"[DONE]":
            continue
        value = json.loads(data)
        if isinstance(value, dict) and "error" in value:
            raise EngineRefused(500, str(value["error"].get("message")))
        yield value


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text
