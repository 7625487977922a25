"""Has vLLM load adapters for requests, and unload first those that were used longest ago.

vLLM reads a registered adapter again from its files when its own cache has dropped it, and its engine dies if
they are gone. So a gateway registers no more adapters than the server's cache holds
(`CopyRoute.max_adapters`): a copy that is full unloads one before it loads another. Loads of such a copy
follow each other in all gateways, and each begins with the server's list. While Redis is away each gateway
locks alone, so each further one may exceed the bound by one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from contracts.adapters.reference import AdapterRef
from contracts.base_routes import CopyRoute
from gateway.backends.copy_locks import CopyLocks
from gateway.backends.upstream import Refusal, UpstreamStream
from gateway.errors import EngineDied, UpstreamBusy
from gateway.routing.fleet import Fleet
from gateway.routing.load_reports import model_names

logger = logging.getLogger(__name__)

REFUSED_SECONDS: Final = 10.0
"""How long a copy that could not load an adapter is not asked for it again."""
UNAVAILABLE: Final = "adapter_unavailable"
_MOST_BYTES: Final = 4 << 20
"""Longest answer that is read; vLLM describes each loaded adapter in about 400 bytes."""

Send = Callable[[CopyRoute, str, dict[str, Any] | None], Awaitable[UpstreamStream | Refusal]]


class AdapterLoads:
    """Loads and unloads, by copy.

    Args:
        send: posts a body to a path of a copy, or gets the path if there is no body.
        fleet: has what each copy lists as loaded, and when metrics last named an adapter.
        locks: make loads of one copy follow each other.
    """

    def __init__(self, send: Send, fleet: Fleet, locks: CopyLocks) -> None:
        self._send, self._fleet, self._locks = send, fleet, locks
        self._loads: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._refused: dict[tuple[str, str], float] = {}

    async def load(self, copy: CopyRoute, adapter: AdapterRef, placed: Collection[str]) -> None:
        """Have the copy load the adapter; concurrent requests share one load.

        Args:
            placed: engine names that operators placed on this copy, which stay.

        Raises:
            UpstreamBusy: the copy cannot load it; another copy may.
            EngineDied: the copy's engine died with the load; no other copy should get it.
            UpstreamUnreachable, UpstreamBroken, UpstreamTimeout: the copy did not answer.
        """
        key = (copy.id, adapter.name)
        if self._refused.get(key, 0.0) > time.monotonic():
            raise UpstreamBusy(f"{REFUSED_SECONDS:.0f}", code=UNAVAILABLE)
        if (task := self._loads.get(key)) is None:
            task = self._loads[key] = asyncio.create_task(self._load(copy, adapter, placed))
            task.add_done_callback(lambda _: self._loads.pop(key, None))
        # A client that hangs up must not end a load that others wait for.
        await asyncio.shield(task)

    def close(self) -> None:
        for task in self._loads.values():
            task.cancel()

    async def _load(self, copy: CopyRoute, adapter: AdapterRef, placed: Collection[str]) -> None:
        if not copy.max_adapters:
            await self._register(copy, adapter)
            return
        try:
            async with self._locks.hold(copy.id):
                await self._load_within_bound(copy, adapter, placed)
        except TimeoutError as error:
            logger.warning("copy %s cannot load %s: %s", copy.id, adapter.name, error)
            raise UpstreamBusy("1", code=UNAVAILABLE) from error

    async def _load_within_bound(self, copy: CopyRoute, adapter: AdapterRef, placed: Collection[str]) -> None:
        await self._list(copy)
        # Another gateway may have loaded it during the wait for the lock.
        if adapter.name not in self._fleet.copy(copy.id).names:
            await self._make_room(copy, adapter, placed)
            await self._register(copy, adapter)

    async def _list(self, copy: CopyRoute) -> None:
        """Read what the server has loaded; if it does not list it, what is known of it remains."""
        asked_at = time.monotonic()
        answer = await self._exchange(copy, "/v1/models", None)
        if isinstance(answer, Refusal):
            if answer.engine_died:
                raise EngineDied
            return
        try:
            self._fleet.copy(copy.id).listed(model_names(answer), (), asked_at=asked_at)
        except ValueError as error:
            logger.warning("copy %s does not list its adapters: %s", copy.id, error)

    async def _make_room(self, copy: CopyRoute, adapter: AdapterRef, placed: Collection[str]) -> None:
        """Unload what is beyond the bound less one. Raises UpstreamBusy where everything has to stay."""
        known = self._fleet.copy(copy.id)
        keep = copy.max_adapters - 1
        for name in known.least_used(keep=keep, placed={*placed, adapter.name}):
            await self._unload(copy, name)
        if len(known.names - {adapter.name}) > keep:
            logger.warning(
                "copy %s has no room for %s: raise its max_cpu_loras, or place fewer adapters there",
                copy.id,
                adapter.name,
            )
            raise UpstreamBusy("1", code=UNAVAILABLE)

    async def _register(self, copy: CopyRoute, adapter: AdapterRef) -> None:
        parts = urlsplit(adapter.uri)
        path = unquote(parts.path).rstrip("/") if parts.scheme == "file" else adapter.uri
        body = {"lora_name": adapter.name, "lora_path": path}
        refusal = await self._post(copy, "/v1/load_lora_adapter", body)
        if refusal is not None and refusal.engine_died:
            raise EngineDied
        # Another gateway may have loaded it meanwhile.
        if refusal is not None and not (refusal.status == 400 and b"already" in refusal.body):
            logger.warning(
                "copy %s cannot load %s (%d: %r); vLLM needs --enable-lora, "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True and the adapter's files",
                copy.id,
                adapter.name,
                refusal.status,
                refusal.body[:500],
            )
            self._refuse((copy.id, adapter.name))
            raise UpstreamBusy(f"{REFUSED_SECONDS:.0f}", code=UNAVAILABLE)
        known = self._fleet.copy(copy.id)
        known.loaded(adapter.name)
        known.use(adapter.name)

    async def _unload(self, copy: CopyRoute, name: str) -> None:
        refusal = await self._post(copy, "/v1/unload_lora_adapter", {"lora_name": name})
        if refusal is not None and refusal.engine_died:
            raise EngineDied
        # 404: another gateway has unloaded it meanwhile.
        if refusal is None or refusal.status == 404:
            self._fleet.copy(copy.id).unloaded(name)
        else:
            logger.warning("copy %s refuses to unload %s (%d)", copy.id, name, refusal.status)

    async def _post(self, copy: CopyRoute, path: str, body: dict[str, Any]) -> Refusal | None:
        answer = await self._exchange(copy, path, body)
        return answer if isinstance(answer, Refusal) else None

    async def _exchange(self, copy: CopyRoute, path: str, body: dict[str, Any] | None) -> bytes | Refusal:
        """Return the answer's first _MOST_BYTES, or the refusal."""
        answer = await self._send(copy, path, body)
        if isinstance(answer, Refusal):
            return answer
        data = b""
        try:
            while len(data) < _MOST_BYTES and (part := await answer.read()):
                data += part
        finally:
            answer.close()
        return data

    def _refuse(self, key: tuple[str, str]) -> None:
        now = time.monotonic()
        self._refused = {known: until for known, until in self._refused.items() if until > now}
        self._refused[key] = now + REFUSED_SECONDS
