"""Adapters in memory: loaded once, shared by requests, dropped oldest first when memory runs short."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from worker_engine.adapters.adapter import Adapter
from worker_engine.adapters.loader import AdapterLoader
from worker_engine.errors import AdapterRefused
from worker_engine.histogram import Histogram
from worker_engine.protocol import AdapterMix, AdapterRef

MAX_LOADS: Final = 4
"""Adapters loaded at a time, and thereby the most that stand outside the pool's limit waiting for room."""

MAX_PINNED: Final = 0.75
"""Share of the pool that adapters may be pinned in: the others' requests need the rest."""


class AdapterPool:
    """Resident adapters by content. Lives on the event loop; the loader works in threads.

    An adapter in use is never dropped. When all that is resident is in use, a newcomer waits until
    enough is released; requests in use end by themselves, so the wait does too.

    Attributes:
        found: by tier, requests that found their adapter in memory, and loads from disk cache or store.
        load_seconds: how long the loads took.
    """

    def __init__(self, loader: AdapterLoader, *, max_bytes: int) -> None:
        self._loader, self._max_bytes = loader, max_bytes
        self._resident: OrderedDict[str, Adapter] = OrderedDict()
        self._users: dict[str, int] = {}
        self._pinned: set[str] = set()
        self._loading: dict[object, asyncio.Task[None]] = {}
        self._load_slots = asyncio.Semaphore(MAX_LOADS)
        self._released = asyncio.Event()
        self.found = dict.fromkeys(("memory", "disk", "store"), 0)
        self.load_seconds = {"disk": Histogram(), "store": Histogram()}

    @property
    def num_resident(self) -> int:
        return len(self._resident)

    @property
    def nbytes(self) -> int:
        return sum(adapter.nbytes for adapter in self._resident.values())

    @asynccontextmanager
    async def acquire(self, ref: AdapterRef | AdapterMix) -> AsyncIterator[Adapter]:
        """The adapter, held for as long as the block runs.

        Raises:
            AdapterUnavailable, AdapterRefused: as `AdapterLoader.load`; refused, too, when it is larger
                than the whole pool.
        """
        self.found["memory"] += ref.sha256 in self._resident
        # Between the end of a load and this coroutine's turn another newcomer may have pushed it out.
        while (adapter := self._resident.get(ref.sha256)) is None:
            await self._join_load(ref)
        self._resident.move_to_end(ref.sha256)
        self._users[ref.sha256] = self._users.get(ref.sha256, 0) + 1
        try:
            yield adapter
        finally:
            self._users[ref.sha256] -= 1
            if not self._users[ref.sha256]:
                del self._users[ref.sha256]
                self._released.set()

    @property
    def pinned_bytes(self) -> int:
        return sum(self._resident[sha256].nbytes for sha256 in self._pinned)

    async def pin(self, ref: AdapterRef) -> None:
        """Loads the adapter and keeps it, used or not, until `unpin`.

        Raises:
            AdapterUnavailable, AdapterRefused: as `acquire`; refused, too, when pinned adapters would take
                more than `MAX_PINNED` of the pool.
        """
        async with self.acquire(ref) as adapter:
            others = self.pinned_bytes - (adapter.nbytes if ref.sha256 in self._pinned else 0)
            if others + adapter.nbytes > MAX_PINNED * self._max_bytes:
                raise AdapterRefused(
                    f"pinned adapters would take {others + adapter.nbytes} bytes, more than {MAX_PINNED:.0%} "
                    f"of this worker's {self._max_bytes} (--adapter-cache-gib)"
                )
            self._pinned.add(ref.sha256)

    def unpin(self, sha256: str) -> bool:
        """Whether it was pinned; unused, it may leave from now on."""
        pinned = sha256 in self._pinned
        self._pinned.discard(sha256)
        self._released.set()
        return pinned

    async def _join_load(self, ref: AdapterRef | AdapterMix) -> None:
        """One load serves all who wait for it, and goes on when one of them hangs up.

        A reference with the same content but another uri or rank is loaded by itself: that another
        tenant's copy is unreachable must not refuse this one's.
        """
        key = _source(ref)
        task = self._loading.get(key)
        if task is None:
            task = self._loading[key] = asyncio.create_task(self._load(ref))
            task.add_done_callback(lambda done: self._loaded(key, done))
        await asyncio.shield(task)

    async def _load(self, ref: AdapterRef | AdapterMix) -> None:
        async with self._load_slots:
            tier = "disk" if self._loader.is_cached(ref) else "store"
            self.found[tier] += 1
            started = time.monotonic()
            adapter = await asyncio.to_thread(self._loader.load, ref)
            self.load_seconds[tier].observe(time.monotonic() - started)
            await self._admit(adapter)

    def _loaded(self, key: object, task: asyncio.Task[None]) -> None:
        del self._loading[key]
        if not task.cancelled():
            task.exception()  # seen, even when all who waited have hung up

    async def _admit(self, adapter: Adapter) -> None:
        while not self._make_room(adapter):
            # What is pinned never leaves: who waited for that would wait for ever.
            if adapter.nbytes > (limit := self._max_bytes - self.pinned_bytes):
                raise AdapterRefused(
                    f"the adapter takes {adapter.nbytes} bytes, this worker holds {limit} beside pinned ones "
                    "(--adapter-cache-gib)"
                )
            self._released.clear()
            await self._released.wait()

    def _make_room(self, adapter: Adapter) -> bool:
        if adapter.sha256 in self._resident:  # another waiter was first
            return True
        for sha256 in list(self._resident):
            if self.nbytes + adapter.nbytes <= self._max_bytes:
                break
            if sha256 not in self._users and sha256 not in self._pinned:
                del self._resident[sha256]
        if self.nbytes + adapter.nbytes > self._max_bytes:
            return False
        self._resident[adapter.sha256] = adapter
        return True


def _source(ref: AdapterRef | AdapterMix) -> object:
    """What is read, and from where."""
    if isinstance(ref, AdapterMix):
        return tuple((_source(member), weight) for member, weight in ref.members)
    return ref.sha256, ref.uri, ref.rank
