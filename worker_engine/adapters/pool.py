"""Adapters in memory: loaded once, shared by requests, dropped oldest first when memory runs short."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from contracts.adapters.reference import AdapterMix, AdapterRef
from worker_engine.adapters.adapter import Adapter
from worker_engine.adapters.loader import AdapterLoader
from worker_engine.errors import AdapterRefused
from worker_engine.histogram import Histogram

MAX_LOADS: Final = 4
"""Adapters loaded at a time, and thereby the most that stand outside the pool's limit waiting for room."""

MAX_PINNED: Final = 0.75
"""Share of the pool that adapters may be pinned in: the others' requests need the rest."""
BY_NAME: Final = "name"
"""Who pins: a name that was registered so (`AdapterRegistry`), ..."""
BY_PLACEMENT: Final = "placement"
"""... or whoever places adapters on copies (`worker_engine.residency`). Neither takes away the other's."""


@dataclass(frozen=True, slots=True)
class Held:
    """An adapter in memory.

    Attributes:
        pinned: by whom; empty where it may leave when room is needed.
        users: requests that hold it now.
        idle_seconds: since a request last took it or let it go.
    """

    sha256: str
    nbytes: int
    pinned: frozenset[str]
    users: int
    idle_seconds: float


class AdapterPool:
    """Resident adapters by content. Lives on the event loop; the loader works in threads.

    An adapter in use is never dropped. When all that is resident is in use, a newcomer waits until
    enough is released; requests in use end by themselves, so the wait does too.

    Attributes:
        max_bytes: that all of them may take.
        found: by tier, requests that found their adapter in memory, and loads from disk cache or store.
        load_seconds: how long the loads took.
    """

    def __init__(self, loader: AdapterLoader, *, max_bytes: int) -> None:
        self._loader, self.max_bytes = loader, max_bytes
        self._resident: OrderedDict[str, Adapter] = OrderedDict()
        self._users: dict[str, int] = {}
        self._pinned: dict[str, set[str]] = {}
        self._leaving: set[str] = set()
        self._used_at: dict[str, float] = {}
        self._loading: dict[object, asyncio.Task[None]] = {}
        self._load_slots = asyncio.Semaphore(MAX_LOADS)
        self._released = asyncio.Event()
        self.found = dict.fromkeys(("memory", "disk", "store"), 0)
        self.load_seconds = {"disk": Histogram(), "store": Histogram()}

    @property
    def num_resident(self) -> int:
        return len(self._resident)

    @property
    def digests(self) -> list[str]:
        """The first 12 digits of each resident adapter's digest, as engine names have them."""
        return [sha256[:12] for sha256 in self._resident]

    @property
    def nbytes(self) -> int:
        return sum(adapter.nbytes for adapter in self._resident.values())

    @property
    def num_unkept(self) -> int:
        """Adapters whose files the disk cache could not take; each is fetched anew when it is next loaded."""
        return self._loader.num_unkept

    async def on_disk(self) -> list[str]:
        """Digests of the adapters whose files are in the disk cache, in memory or not."""
        return await asyncio.to_thread(self._loader.cached)

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
        self._used_at[ref.sha256] = time.monotonic()
        self._users[ref.sha256] = self._users.get(ref.sha256, 0) + 1
        try:
            yield adapter
        finally:
            self._users[ref.sha256] -= 1
            self._used_at[ref.sha256] = time.monotonic()
            if not self._users[ref.sha256]:
                del self._users[ref.sha256]
                if ref.sha256 in self._leaving:
                    self._drop(ref.sha256)
                self._released.set()

    @property
    def pinned_bytes(self) -> int:
        return sum(self._resident[sha256].nbytes for sha256 in self._pinned)

    def held(self) -> list[Held]:
        """Every resident adapter, the one that would leave first first."""
        now = time.monotonic()
        return [
            Held(
                sha256, adapter.nbytes, frozenset(self._pinned.get(sha256, ())),
                self._users.get(sha256, 0), now - self._used_at[sha256],
            )
            for sha256, adapter in self._resident.items()
        ]  # fmt: skip

    async def pin(self, ref: AdapterRef, *, by: str = BY_NAME) -> None:
        """Loads the adapter and keeps it, used or not, until `unpin` by the same.

        Raises:
            AdapterUnavailable, AdapterRefused: as `acquire`; refused, too, when pinned adapters would take
                more than `MAX_PINNED` of the pool.
        """
        async with self.acquire(ref) as adapter:
            others = self.pinned_bytes - (adapter.nbytes if ref.sha256 in self._pinned else 0)
            if others + adapter.nbytes > MAX_PINNED * self.max_bytes:
                raise AdapterRefused(
                    f"pinned adapters would take {others + adapter.nbytes} bytes, more than {MAX_PINNED:.0%} "
                    f"of this worker's {self.max_bytes} (--adapter-cache-gib)"
                )
            self._leaving.discard(ref.sha256)
            self._pinned.setdefault(ref.sha256, set()).add(by)

    def unpin(self, sha256: str, *, by: str = BY_NAME) -> bool:
        """Whether it was pinned by this one; pinned by nobody else, and unused, it may leave from now on."""
        holders = self._pinned.get(sha256, set())
        pinned = by in holders
        holders.discard(by)
        if not holders:
            self._pinned.pop(sha256, None)
        self._released.set()
        return pinned

    def evict(self, sha256: str) -> bool:
        """Lets go of an adapter that is not pinned: now, or when the last of its requests ends, new ones
        among them. The next request after that loads it again.

        Returns:
            whether it has left; True, too, for one that was not there.

        Raises:
            AdapterRefused: it is pinned.
        """
        if holders := self._pinned.get(sha256):
            raise AdapterRefused(f"the adapter is pinned (by {', '.join(sorted(holders))}): unpin it first")
        if sha256 not in self._resident:
            return True
        if sha256 in self._users:
            self._leaving.add(sha256)
            return False
        self._drop(sha256)
        self._released.set()
        return True

    def _drop(self, sha256: str) -> None:
        self._leaving.discard(sha256)
        del self._resident[sha256], self._used_at[sha256]

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
            if adapter.nbytes > (limit := self.max_bytes - self.pinned_bytes):
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
            if self.nbytes + adapter.nbytes <= self.max_bytes:
                break
            if sha256 not in self._users and sha256 not in self._pinned:
                self._drop(sha256)
        if self.nbytes + adapter.nbytes > self.max_bytes:
            return False
        self._resident[adapter.sha256] = adapter
        self._used_at[adapter.sha256] = time.monotonic()
        return True


def _source(ref: AdapterRef | AdapterMix) -> object:
    """What is read, and from where."""
    if isinstance(ref, AdapterMix):
        return tuple((_source(member), weight) for member, weight in ref.members)
    return ref.sha256, ref.uri, ref.rank
