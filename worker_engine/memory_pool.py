"""The process's memory pages, shared by KV cache and adapter weights, with their number of holders."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from worker_engine.config import PAGE_SIZE


def pages_for(tokens: int) -> int:
    """Return the number of pages that hold `tokens` tokens."""
    return -(-tokens // PAGE_SIZE)


class Idle(NamedTuple):
    """Parked pages without holders whose content may be reused; `forget` notifies their owner of eviction."""

    pages: Sequence[int]
    forget: Callable[[], None]


class MemoryPool:
    """Pages of one size, each with its number of holders. Page 0 is never allocated: tables pad with it.

    KV pages and adapter pages share one budget. A page that one use frees suits the other, and no use needs
    adjacent pages, so nothing fragments. Pages without holders that may be reused (a cached prefix, an
    adapter without requests) are parked. When pages run out, the longest parked ones are evicted, in one
    order for both uses (S-LoRA's unified pool; Sheng et al. 2023, arXiv:2311.03285).
    """

    def __init__(self, num_pages: int) -> None:
        """`num_pages` counts page 0."""
        self._free = list(range(num_pages - 1, 0, -1))
        self._holders: dict[int, int] = {}
        self._idle: OrderedDict[object, Idle] = OrderedDict()
        self._num_idle = 0
        self._fresh: dict[int, None] = {}
        self.capacity: Final = num_pages - 1

    @property
    def num_free(self) -> int:
        """Pages that can be allocated, including parked ones."""
        return len(self._free) + self._num_idle

    @property
    def num_idle(self) -> int:
        return self._num_idle

    @property
    def num_used(self) -> int:
        return len(self._holders)

    def holders(self, page: int) -> int:
        return self._holders.get(page, 0)

    def can_allocate(self, count: int) -> bool:
        return count <= self.num_free

    def allocate(self, count: int, *, clear: bool = True) -> list[int]:
        """Allocate `count` pages, evicting parked ones if needed.

        Args:
            clear: list the pages in `take_fresh`; False for pages that are filled before they are read.

        Raises ValueError when fewer are free (check `can_allocate` first).
        """
        if not self.can_allocate(count):
            raise ValueError(f"{count} pages asked for, {self.num_free} free")
        while len(self._free) < count:
            self._evict()
        pages = [self._free.pop() for _ in range(count)]
        self._holders.update(dict.fromkeys(pages, 1))
        if clear:
            self._fresh.update(dict.fromkeys(pages))
        else:
            # One that was another's since the last `take_fresh` would be cleared after it was filled.
            for page in pages:
                self._fresh.pop(page, None)
        return pages

    def share(self, page: int) -> None:
        """Add one holder. Raises ValueError for a page without holders."""
        if page not in self._holders:
            raise ValueError(f"page {page} is not held")
        self._holders[page] += 1

    def free(self, pages: Iterable[int]) -> None:
        """Remove one holder from each page; the last one frees it. Raises ValueError for a page without
        holders.
        """
        for page in pages:
            if not self._drop_holder(page):
                self._free.append(page)

    def park(self, key: object, pages: Sequence[int], forget: Callable[[], None]) -> None:
        """Park pages whose only holder leaves; they keep their content until they are needed.

        Args:
            key: for `unpark`; unique among parked entries.
            forget: called when the pages are evicted.
        """
        if any(self._holders.get(page) != 1 for page in pages) or key in self._idle:
            raise ValueError(f"pages {pages} must have one holder each, and the key be new")
        for page in pages:
            del self._holders[page]
        self._idle[key] = Idle(pages, forget)
        self._num_idle += len(pages)

    def unpark(self, key: object) -> Sequence[int]:
        """Hold parked pages again, with their content. Raises KeyError when nothing is parked under `key`."""
        pages = self._idle.pop(key).pages
        self._num_idle -= len(pages)
        self._holders.update(dict.fromkeys(pages, 1))
        return pages

    def is_parked(self, key: object) -> bool:
        return key in self._idle

    def take_fresh(self) -> list[int]:
        """Return pages allocated since the last call, which hold a previous owner's data until they are
        cleared.
        """
        fresh, self._fresh = list(self._fresh), {}
        return fresh

    def _evict(self) -> None:
        _, idle = self._idle.popitem(last=False)
        self._num_idle -= len(idle.pages)
        self._free.extend(idle.pages)
        idle.forget()

    def _drop_holder(self, page: int) -> int:
        if page not in self._holders:
            raise ValueError(f"page {page} is not held")
        self._holders[page] -= 1
        left = self._holders[page]
        if not left:
            del self._holders[page]
        return left
