"""Adapters in host memory: loaded once, shared by requests, evicted least recently used first."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from contracts.adapters.reference import AdapterMix, AdapterRef
from worker_engine.adapters.adapter import Adapter
from worker_engine.errors import AdapterRefused
from worker_engine.histogram import Histogram

MAX_LOADS: Final = 4
"""Concurrent loads. This also bounds the loaded adapters that wait for room outside the pool's limit."""

MAX_PINNED: Final = 0.75
"""Largest share of the pool that pinned adapters may take; other requests need the rest."""
BY_NAME: Final = "name"
"""Pin owner: a name registered as pinned (`AdapterRegistry`)."""
BY_PLACEMENT: Final = "placement"
"""Pin owner: the control plane's placements (`worker_engine.residency`). Owners do not remove each other's
pins.
"""


@dataclass(frozen=True, slots=True)
class Residency:
    """An adapter in memory.

    Attributes:
        pinned: owners of its pins; it may be evicted if empty.
        users: requests that hold it now.
        idle_seconds: since a request last acquired or released it.
    """

    sha256: str
    nbytes: int
    pinned: frozenset[str]
    users: int
    idle_seconds: float


class Loader(Protocol):
    """Reads adapters from a store or a disk cache, in threads; `AdapterLoader` is the real one."""

    @property
    def num_unkept(self) -> int:
        """Adapters whose files the disk cache could not store."""

    def cached(self) -> list[str]:
        """Return the digests of the adapters on disk."""

    def is_cached(self, ref: AdapterRef | AdapterMix) -> bool:
        """Return True if the files are on disk."""

    def load(self, ref: AdapterRef | AdapterMix) -> Adapter:
        """Load an adapter. Raises AdapterUnavailable or AdapterRefused."""


class AdapterPool:
    """Resident adapters by content digest. Runs on the event loop; the loader runs in threads.

    An adapter in use is never evicted. When every resident adapter is in use, a new one waits until enough
    memory is released, which happens as requests end.

    Attributes:
        max_bytes: memory limit of all adapters.
        found: by tier, requests that found their adapter in memory, and loads from disk cache or store.
        load_seconds: durations of loads, by tier.
    """

    def __init__(self, loader: Loader, *, max_bytes: int) -> None:
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
        """The first 12 digits of each resident adapter's digest, as in engine names."""
        return [sha256[:12] for sha256 in self._resident]

    @property
    def nbytes(self) -> int:
        return sum(adapter.nbytes for adapter in self._resident.values())

    @property
    def num_unkept(self) -> int:
        """Adapters whose files the disk cache could not store; their next load fetches them again."""
        return self._loader.num_unkept

    async def on_disk(self) -> list[str]:
        """Return the digests of adapters whose files are in the disk cache, whether in memory or not."""
        return await asyncio.to_thread(self._loader.cached)

    @asynccontextmanager
    async def acquire(self, ref: AdapterRef | AdapterMix) -> AsyncIterator[Adapter]:
        """Yield the adapter and hold it until the block ends.

        Raises:
            AdapterUnavailable, AdapterRefused: as `AdapterLoader.load`; also refused when it is larger
                than the whole pool.
        """
        self.found["memory"] += ref.sha256 in self._resident
        # Loop: another new adapter may have evicted it between the end of the load and this coroutine's
        # resumption.
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

    def residencies(self) -> list[Residency]:
        """List every resident adapter in eviction order."""
        now = time.monotonic()
        return [
            Residency(
                sha256,
                adapter.nbytes,
                frozenset(self._pinned.get(sha256, ())),
                self._users.get(sha256, 0),
                now - self._used_at[sha256],
            )
            for sha256, adapter in self._resident.items()
        ]

    async def pin(self, ref: AdapterRef, *, by: str = BY_NAME) -> None:
        """Load the adapter and keep it in memory until `unpin` by the same owner.

        Raises:
            AdapterUnavailable, AdapterRefused: as `acquire`; also refused when pinned adapters would take
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
        """Remove this owner's pin and return True if there was one. Without other pins the adapter may be
        evicted.
        """
        holders = self._pinned.get(sha256, set())
        pinned = by in holders
        holders.discard(by)
        if not holders:
            self._pinned.pop(sha256, None)
        self._released.set()
        return pinned

    def evict(self, sha256: str) -> bool:
        """Evict an adapter that is not pinned: now if it is idle, otherwise when its last request ends.

        Requests that arrive before then still use it and delay the eviction.

        Returns:
            True if the adapter is no longer resident, or never was.

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
        """Wait for the load of `ref`, which all waiting requests share; a client's disconnect does not stop
        it.

        References with equal content but another uri or rank load separately, so that one tenant's
        unreachable copy cannot fail another's request.
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
            # mark the exception as retrieved, even if every waiting request has disconnected
            task.exception()

    async def _admit(self, adapter: Adapter) -> None:
        while not self._make_room(adapter):
            # Pinned adapters are never evicted, so waiting for their memory would never end.
            if adapter.nbytes > (limit := self.max_bytes - self.pinned_bytes):
                raise AdapterRefused(
                    f"the adapter takes {adapter.nbytes} bytes, this worker holds {limit} beside pinned ones "
                    "(--adapter-cache-gib)"
                )
            self._released.clear()
            await self._released.wait()

    def _make_room(self, adapter: Adapter) -> bool:
        if adapter.sha256 in self._resident:  # a concurrent load of the same content was first
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
    """Return the key of a load: content, location and rank."""
    if isinstance(ref, AdapterMix):
        return tuple((_source(member), weight) for member, weight in ref.members)
    return ref.sha256, ref.uri, ref.rank
