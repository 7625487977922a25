"""Accounts for the pool pages of the batch's adapters, and limits the number of adapters in a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from worker_engine.adapters.adapter import Adapter
from worker_engine.histogram import Histogram
from worker_engine.memory_pool import MemoryPool

AHEAD: Final = 4
"""Waiting sequences whose adapters are prefetched to the device while others compute."""


class Tier(Protocol):
    """The device's copies of adapters, each in pages of the pool; `DeviceTier` is the real one.

    Attributes:
        load_seconds: how long the device took for the copies of each load.
        num_bytes: bytes copied so far.
        num_loads: loads so far.
    """

    load_seconds: Histogram
    num_bytes: int
    num_loads: int

    def pages_of(self, adapter: Adapter) -> int:
        """Return how many pages the adapter needs. Raises AdapterRefused when a row exceeds a page."""

    def load(self, adapter: Adapter, pages: Sequence[int]) -> None:
        """Queue the copies of the adapter's weights into `pages`."""

    def drop(self, sha256: str) -> None:
        """Forget an adapter whose pages are given to another user."""


class AdapterMemory:
    """Tracks which adapters running sequences use. Pages of unused adapters stay parked in the pool.

    With a device tier, the pages hold the weights; `acquire` and `prefetch` start the copies. On the CPU, the
    weights stay where they were loaded, and the pages only account for their bytes. So adapters and cached
    prefixes compete for one memory budget.
    """

    def __init__(
        self, pool: MemoryPool, *, page_bytes: int, max_adapters: int, tier: Tier | None = None
    ) -> None:
        """`page_bytes` 0 means that adapters use no pages."""
        self._pool, self._page_bytes = pool, page_bytes
        self.tier: Final = tier
        self._users: dict[str, int] = {}
        self._pages: dict[str, list[int]] = {}
        self.max_adapters: Final = max_adapters

    @property
    def num_active(self) -> int:
        return len(self._users)

    @property
    def num_resident(self) -> int:
        """Adapters with pages, including parked ones."""
        return len(self._pages)

    def has_pages(self, sha256: str) -> bool:
        """Return True if the adapter has pages, parked or in use. Thread-safe."""
        return sha256 in self._pages

    @property
    def num_active_pages(self) -> int:
        """Pages of adapters that running sequences use. Thread-safe."""
        return sum(len(self._pages.get(sha256, ())) for sha256 in list(self._users))

    def active_pages(self) -> list[list[int]]:
        """The pages of each adapter that running sequences use."""
        return [self._pages[sha256] for sha256 in self._users]

    def pages_of(self, adapter: Adapter | None) -> int:
        """Return the pages that the adapter takes while a sequence uses it. Thread-safe.

        Raises AdapterRefused if one of its rows exceeds a page.
        """
        if adapter is None or not self._page_bytes:
            return 0
        if self.tier is not None:
            return self.tier.pages_of(adapter)
        return -(-adapter.nbytes // self._page_bytes)

    def num_users(self, adapter: Adapter | None) -> int:
        """Running sequences that use the adapter."""
        return 0 if adapter is None else self._users.get(adapter.sha256, 0)

    def has_slot(self, adapter: Adapter | None) -> bool:
        """Return True if a sequence with the adapter may join the batch without exceeding `max_adapters`."""
        return adapter is None or adapter.sha256 in self._users or len(self._users) < self.max_adapters

    def num_missing_pages(self, adapter: Adapter | None) -> int:
        """Return how many free pages `acquire` would use; parked pages count as free until then."""
        return 0 if self.num_users(adapter) else self.pages_of(adapter)

    def acquire(self, adapter: Adapter | None) -> None:
        """Count one more running sequence with the adapter. Raises ValueError when the pool lacks pages."""
        if adapter is None:
            return
        sha256 = adapter.sha256
        if sha256 not in self._users:
            if sha256 in self._pages:
                self._pool.unpark(sha256)
            else:
                self._load(adapter)
        self._users[sha256] = self._users.get(sha256, 0) + 1

    def prefetch(self, adapter: Adapter | None) -> None:
        """Start copying the weights to the device for one of the next `AHEAD` waiting sequences.

        The pages are parked at once, so running sequences may reclaim them. Does nothing without a device
        tier.
        """
        if self.tier is None or adapter is None or adapter.sha256 in self._users:
            return
        if adapter.sha256 in self._pages:
            self._pool.unpark(adapter.sha256)  # parked again below, as the last to be evicted
        # Require room for all of them: else the next sequences would evict each other's adapters every step.
        elif self._pool.num_free >= AHEAD * self.pages_of(adapter):
            self._load(adapter)
        else:
            return
        self._park(adapter.sha256)

    def release(self, adapter: Adapter | None) -> None:
        """Count one running sequence less; the last one parks the pages."""
        if adapter is None:
            return
        sha256 = adapter.sha256
        self._users[sha256] -= 1
        if not self._users[sha256]:
            del self._users[sha256]
            self._park(sha256)

    def _load(self, adapter: Adapter) -> None:
        # Skip clearing with a device tier: the copies overwrite the pages before anything reads them.
        pages = self._pool.allocate(self.pages_of(adapter), clear=self.tier is None)
        if self.tier is not None:
            try:
                self.tier.load(adapter, pages)
            except BaseException:
                self._pool.free(pages)
                raise
        self._pages[adapter.sha256] = pages

    def _park(self, sha256: str) -> None:
        self._pool.park(sha256, self._pages[sha256], lambda: self._forget(sha256))

    def _forget(self, sha256: str) -> None:
        del self._pages[sha256]
        if self.tier is not None:
            self.tier.drop(sha256)
