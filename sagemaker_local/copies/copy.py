"""One copy: a container's process, from its start to its end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp

from sagemaker_local.copies.artifacts import Model, link_tree
from sagemaker_local.copies.command import ContainerSpec, CopyFolders, command, variables
from sagemaker_local.copies.errors import AdapterRefused, StartError
from sagemaker_local.copies.tether import free_port, start_tethered
from sagemaker_local.state import Load

PING_SECONDS: Final = 0.1
DRAIN_SECONDS: Final = 60.0
"""SageMaker's time limit of one invocation."""
TERM_SECONDS: Final = 10.0
_LOG_TAIL: Final = 600
_numbers = itertools.count(1)


@dataclass(slots=True)
class Copy:
    """A container's process. `load` counts its running invocations."""

    spec: ContainerSpec
    folder: Path
    port: int
    process: asyncio.subprocess.Process
    number: int = field(default_factory=lambda: next(_numbers))
    load: Load = field(default_factory=Load)
    ready: bool = False
    _sources: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def until_ready(self, client: aiohttp.ClientSession, seconds: float) -> None:
        """Wait until the container answers a ping. Raises StartError if it ends, or is too slow."""
        try:
            async with asyncio.timeout(seconds):
                while not await self._answers(client):
                    if self.process.returncode is not None:
                        raise StartError(f"The container ended at its start: {self._last_words()}")
                    await asyncio.sleep(PING_SECONDS)
        except TimeoutError:
            raise StartError(
                f"The container did not pass the ping health check within {seconds:g} s: {self._last_words()}"
            ) from None

    async def put_adapter(self, client: aiohttp.ClientSession, name: str, files: Path) -> None:
        """Register the files under `name`, or replace the adapter of that name.

        Each version gets a new folder: the container may read the old one until it has the new.

        Raises:
            AdapterRefused: with the container's text.
        """
        self._sources += 1
        place = self.folder / "adapters" / f"{name}.{self._sources}"
        await asyncio.to_thread(link_tree, files, place)
        known = await self._ask(client, "GET", f"/adapters/{name}", {}) == 200
        path = f"/adapters/{name}/update" if known else "/adapters"
        await self._demand(client, "POST", path, {"src": str(place)} | ({} if known else {"name": name}))
        for other in (self.folder / "adapters").glob(f"{name}.*"):
            if other != place:
                shutil.rmtree(other, ignore_errors=True)

    async def drop_adapter(self, client: aiohttp.ClientSession, name: str) -> None:
        """Unregister an adapter; an unknown one is ignored."""
        with contextlib.suppress(AdapterRefused):
            await self._demand(client, "DELETE", f"/adapters/{name}", {})
        for place in (self.folder / "adapters").glob(f"{name}.*"):
            shutil.rmtree(place, ignore_errors=True)

    async def stop(self, *, drain: bool = True) -> None:
        """End the process, with `drain` after its invocations, and remove its folder."""
        self.ready = False
        if drain:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.load.idle(), DRAIN_SECONDS)
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    self.process.send_signal(number)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.process.wait(), TERM_SECONDS if drain else 2.0)
        await asyncio.to_thread(shutil.rmtree, self.folder, True)

    async def _answers(self, client: aiohttp.ClientSession) -> bool:
        return await self._ask(client, "GET", "/ping", {}) == 200

    async def _ask(self, client: aiohttp.ClientSession, method: str, path: str, query: dict[str, str]) -> int:
        """Return the status of a request; 0 without an answer."""
        try:
            async with client.request(method, self.url + path, params=query) as answer:
                return answer.status
        except (aiohttp.ClientError, OSError):
            return 0

    async def _demand(
        self, client: aiohttp.ClientSession, method: str, path: str, query: dict[str, str]
    ) -> None:
        try:
            async with client.request(method, self.url + path, params=query) as answer:
                if answer.status >= 300:
                    raise AdapterRefused(f"The container refused it ({answer.status}): {await answer.text()}")
        except (aiohttp.ClientError, OSError) as error:
            raise AdapterRefused(f"The container did not answer: {error}") from error

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            return (self.folder / "log").read_text(errors="replace")[-_LOG_TAIL:].strip()
        return ""


async def launch(
    spec: ContainerSpec,
    folder: Path,
    model: Model,
    *,
    name: str,
    environment: Mapping[str, str],
    images: Mapping[str, tuple[str, ...]],
) -> Copy:
    """Start the process in the new folder `folder`; it may not serve yet.

    Args:
        environment: variables for every container, in addition to its own.
    """
    folders = CopyFolders(model.folder, folder / "adapters", folder / "cache", model.additional)
    folders.adapters.mkdir(parents=True)
    if model.adapters is not None:
        await asyncio.to_thread(link_tree, model.adapters, folders.adapters)
    port = free_port()
    words = command(spec, folders, name=name, port=port, images=images)
    ours = {key: value for key, value in os.environ.items() if key not in _NOT_PASSED_ON}
    told = ours | dict(environment) | variables(spec, folders) | {"SAGEMAKER_BIND_TO_PORT": str(port)}
    process = await start_tethered(words, told, folder / "log")
    return Copy(spec, folder, port, process)


_NOT_PASSED_ON: Final = frozenset({"GRAFTWORK_FLEET_TOKEN", "AWS_ENDPOINT_URL", "AWS_SESSION_TOKEN"})
"""Variables that containers do not inherit: SageMaker sets no token, and S3 has its own variable."""
