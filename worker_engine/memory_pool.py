"""The pages of this process, for KV and for adapter weights alike: who holds which."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from worker_engine.config import PAGE_SIZE


def pages_for(tokens: int) -> int:
    """Pages that hold `tokens` tokens."""
    return -(-tokens // PAGE_SIZE)


class Idle(NamedTuple):
    """Pages whose content may be wanted again, but which nobody holds; `forget` tells their owner."""

    pages: Sequence[int]
    forget: Callable[[], None]


class MemoryPool:
    """Pages of one size, each with its number of holders. Page 0 is never given out: tables pad with it.

    KV pages and the pages of adapter weights come from the same budget: a page that one use gives back is as
    good for the other, and since no use needs neighbours, there is nothing that could fragment. What nobody
    holds but may be wanted again (a cached prefix, an adapter without requests) is parked, and taken
    back, longest parked first, when pages run out: one order for both uses (S-LoRA's unified pool; Sheng et
    al. 2023, arXiv:2311.03285).
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
        """Pages that can be allocated, parked ones among them."""
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
        """Takes `count` pages, evicting what is parked if need be.

        Args:
            clear: whether `take_fresh` names them; not for pages that are filled before they are read.

        Raises ValueError when fewer are free (ask `can_allocate` first).
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
        """One more holder. Raises ValueError for a page that nobody holds."""
        if page not in self._holders:
            raise ValueError(f"page {page} is not held")
        self._holders[page] += 1

    def free(self, pages: Iterable[int]) -> None:
        """One holder less for each page; its last one frees it. Raises ValueError for a page not held."""
        for page in pages:
            if not self._drop_holder(page):
                self._free.append(page)

    def park(self, key: object, pages: Sequence[int], forget: Callable[[], None]) -> None:
        """Their only holder leaves, but the pages keep their content until they are needed.

        Args:
            key: for `unpark`; unique among what is parked.
            forget: called when the pages are taken back.
        """
        if any(self._holders.get(page) != 1 for page in pages) or key in self._idle:
            raise ValueError(f"pages {pages} must have one holder each, and the key be new")
        for page in pages:
            del self._holders[page]
        self._idle[key] = Idle(pages, forget)
        self._num_idle += len(pages)

    def unpark(self, key: object) -> Sequence[int]:
        """Takes parked pages with their content. Raises KeyError when nothing is parked under `key`."""
        pages = self._idle.pop(key).pages
        self._num_idle -= len(pages)
        self._holders.update(dict.fromkeys(pages, 1))
        return pages

    def is_parked(self, key: object) -> bool:
        return key in self._idle

    def take_fresh(self) -> list[int]:
        """Pages allocated since the last call: they hold a former owner's data until they are cleared."""
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
