"""Finds computed KV pages by content: cache salt, adapter, and every token up to their end."""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from worker_engine.config import PAGE_SIZE
from worker_engine.memory_pool import MemoryPool


class HashChain:
    """One hash per full page of a sequence, each over the previous hash and the page's tokens.

    SHA-256, so that no prompt can be crafted to collide with another tenant's page: vLLM's hash() allowed it
    (CVE-2025-25183). The first hash covers the salt and the adapter's content. Sequences that differ in
    either share nothing, and a new version of an adapter has other hashes.
    """

    __slots__ = ("_root", "hashes")

    def __init__(self, salt: str, adapter: str) -> None:
        """`adapter` is the adapter's content hash, "" for the base model."""
        self._root = hashlib.sha256(hashlib.sha256(salt.encode()).digest() + adapter.encode()).digest()
        self.hashes: list[bytes] = []

    def extend(self, token_ids: Sequence[int], pages: int) -> list[bytes]:
        """Return the hashes of the first `pages` pages, all of them full; the sequence may only grow."""
        for index in range(len(self.hashes), pages):
            block = array("q", token_ids[index * PAGE_SIZE : (index + 1) * PAGE_SIZE])
            before = self.hashes[-1] if self.hashes else self._root
            self.hashes.append(hashlib.sha256(before + block.tobytes()).digest())
        return self.hashes[:pages]


class PrefixCache:
    """Maps hashes to pages. A page without holders stays here, parked, until its memory is needed."""

    def __init__(self, pool: MemoryPool) -> None:
        self._pool = pool
        self._pages: dict[bytes, int] = {}
        self._hashes: dict[int, bytes] = {}
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0

    def __len__(self) -> int:
        return len(self._pages)

    def acquire(self, hashes: Iterable[bytes]) -> list[int]:
        """Return the pages of the longest known prefix of `hashes`, adding one holder each; `release` removes
        it.
        """
        pages: list[int] = []
        for digest in hashes:
            page = self._pages.get(digest)
            if page is None:
                break
            if self._pool.is_parked(digest):
                self._pool.unpark(digest)
            else:
                self._pool.share(page)
            pages.append(page)
        return pages

    def num_known(self, hashes: Sequence[bytes]) -> int:
        """Return the length of the known prefix of `hashes`, by bisection: eviction is from the end."""
        return bisect_left(hashes, True, key=lambda digest: digest not in self._pages)

    def count(self, queried_tokens: int, hit_tokens: int) -> None:
        """Count one prompt's tokens and those found in the cache, for the metrics."""
        self.num_queried_tokens += queried_tokens
        self.num_hit_tokens += hit_tokens

    def insert(self, digest: bytes, page: int) -> None:
        """Register a computed, full page with a holder. Of equal pages the first stays registered."""
        if digest not in self._pages and page not in self._hashes:
            self._pages[digest], self._hashes[page] = page, digest

    def release(self, pages: Sequence[int]) -> None:
        """Remove one holder from each page; registered pages stay after their last one.

        From the end on, so that a prefix loses its last page first and its beginning can still be found.
        """
        for page in reversed(pages):
            digest = self._hashes.get(page)
            if digest is not None and self._pool.holders(page) == 1:
                self._pool.park(digest, (page,), lambda page=page: self._forget(page))  # type: ignore[misc]
            else:
                self._pool.free((page,))

    def _forget(self, page: int) -> None:
        del self._pages[self._hashes.pop(page)]
