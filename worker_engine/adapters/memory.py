"""The pages that the batch's adapters take from the pool, at their real rank, and how many may be at once."""

from __future__ import annotations

from typing import Final

from worker_engine.adapters.adapter import Adapter
from worker_engine.adapters.device_tier import DeviceTier
from worker_engine.memory_pool import MemoryPool

AHEAD: Final = 4
"""Waiting sequences whose adapters are brought to the device while others compute."""


class AdapterMemory:
    """Which adapters the running sequences use; one that none uses keeps its pages parked.

    With a device tier, weights lie in the pages: they are on their way from `acquire` or `prefetch` on. On
    the CPU they are read where they were loaded, outside of the pool's tensor: the pages taken here count
    them against the one budget, so that adapters push out cached prefixes and the reverse, but no byte is
    stored in them.
    """

    def __init__(
        self,
        pool: MemoryPool,
        *,
        page_bytes: int,
        max_adapters: int,
        tier: DeviceTier | None = None,
    ) -> None:
        """`page_bytes` 0 counts adapters as nothing."""
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
        """Adapters with pages, parked ones among them."""
        return len(self._pages)

    def has_pages(self, sha256: str) -> bool:
        """Whether the adapter lies in the pool's pages, parked or in use; any thread may ask."""
        return sha256 in self._pages

    @property
    def num_active_pages(self) -> int:
        """Pages of adapters that running sequences use; any thread may read it."""
        return sum(len(self._pages.get(sha256, ())) for sha256 in list(self._users))

    def active_pages(self) -> list[list[int]]:
        """The pages of each adapter that running sequences use."""
        return [self._pages[sha256] for sha256 in self._users]

    def pages_of(self, adapter: Adapter | None) -> int:
        """Pages that the adapter takes while a sequence uses it; any thread may ask.

        Raises AdapterRefused for one that no page can hold a row of.
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
        """Whether the adapter may join the batch's."""
        return adapter is None or adapter.sha256 in self._users or len(self._users) < self.max_adapters

    def num_missing_pages(self, adapter: Adapter | None) -> int:
        """Free pages that `acquire` uses up; its parked ones count as free until then."""
        return 0 if self.num_users(adapter) else self.pages_of(adapter)

    def acquire(self, adapter: Adapter | None) -> None:
        """One more running sequence with it. Raises ValueError when the pool has not enough pages."""
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
        """Begins to bring weights to the device for one of the `AHEAD` sequences that are next.

        They are parked at once: what runs may take the pages back. Without a device tier it does nothing.
        """
        if self.tier is None or adapter is None or adapter.sha256 in self._users:
            return
        if adapter.sha256 in self._pages:
            self._pool.unpark(adapter.sha256)  # and parked anew, as the last to leave
        # Else those that come next would push each other out, step after step.
        elif self._pool.num_free >= AHEAD * self.pages_of(adapter):
            self._load(adapter)
        else:
            return
        self._park(adapter.sha256)

    def release(self, adapter: Adapter | None) -> None:
        """One running sequence less; the last one's leave parks the pages."""
        if adapter is None:
            return
        sha256 = adapter.sha256
        self._users[sha256] -= 1
        if not self._users[sha256]:
            del self._users[sha256]
            self._park(sha256)

    def _load(self, adapter: Adapter) -> None:
        # Of what these pages held, nothing is read before the weights lie over it.
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
