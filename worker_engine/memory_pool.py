"""The KV pages of this process: who holds which."""

from __future__ import annotations

from collections.abc import Iterable

from worker_engine.config import PAGE_SIZE


def pages_for(tokens: int) -> int:
    """Pages that hold `tokens` tokens."""
    return -(-tokens // PAGE_SIZE)


class MemoryPool:
    """A free list of pages. Page 0 is never given out: block tables are padded with it."""

    def __init__(self, num_pages: int) -> None:
        """`num_pages` counts page 0."""
        self._free = list(range(num_pages - 1, 0, -1))
        self._held: set[int] = set()
        self._fresh: list[int] = []
        self.capacity = num_pages - 1

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return len(self._held)

    def can_allocate(self, count: int) -> bool:
        return count <= len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Takes `count` pages. Raises ValueError when fewer are free (ask `can_allocate` first)."""
        if not self.can_allocate(count):
            raise ValueError(f"{count} pages asked for, {len(self._free)} free")
        pages = [self._free.pop() for _ in range(count)]
        self._held.update(pages)
        self._fresh.extend(pages)
        return pages

    def free(self, pages: Iterable[int]) -> None:
        """Gives pages back. Raises ValueError for a page that is not held."""
        for page in pages:
            if page not in self._held:
                raise ValueError(f"page {page} is not held")
            self._held.remove(page)
            self._free.append(page)

    def take_fresh(self) -> list[int]:
        """Pages allocated since the last call: they hold a former owner's data until they are cleared."""
        fresh, self._fresh = self._fresh, []
        return fresh
