"""Computed KV pages found again by what they hold: cache salt, adapter, and every token up to their end."""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from worker_engine.config import PAGE_SIZE
from worker_engine.memory_pool import MemoryPool


class HashChain:
    """One hash for each full page of a sequence, each over the hash before it and the page's tokens.

    SHA-256, so that nobody can make a prompt that meets another tenant's page: vLLM's hash() allowed it
    (CVE-2025-25183). The first link is over the salt and the adapter's content: sequences that differ
    in either share nothing, and an adapter that is uploaded anew has other weights and other hashes.
    """

    __slots__ = ("_root", "hashes")

    def __init__(self, salt: str, adapter: str) -> None:
        """`adapter` is the adapter's content hash, "" for the base alone."""
        self._root = hashlib.sha256(hashlib.sha256(salt.encode()).digest() + adapter.encode()).digest()
        self.hashes: list[bytes] = []

    def extend(self, token_ids: Sequence[int], pages: int) -> list[bytes]:
        """The hashes of the first `pages` pages, all of them full, of a sequence that only ever grows."""
        for index in range(len(self.hashes), pages):
            block = array("q", token_ids[index * PAGE_SIZE : (index + 1) * PAGE_SIZE])
            before = self.hashes[-1] if self.hashes else self._root
            self.hashes.append(hashlib.sha256(before + block.tobytes()).digest())
        return self.hashes[:pages]


class PrefixCache:
    """Which page holds which prefix. A page that nobody holds stays here, parked, until it is needed."""

    def __init__(self, pool: MemoryPool) -> None:
        self._pool = pool
        self._pages: dict[bytes, int] = {}
        self._hashes: dict[int, bytes] = {}
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0

    def __len__(self) -> int:
        return len(self._pages)

    def acquire(self, hashes: Iterable[bytes]) -> list[int]:
        """Pages of the longest known beginning of `hashes`, with one more holder each; release them."""
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
        """Pages of the known beginning of `hashes`, by halving: a prefix loses its last page first."""
        return bisect_left(hashes, True, key=lambda digest: digest not in self._pages)

    def count(self, queried_tokens: int, hit_tokens: int) -> None:
        """For the metrics: what one prompt looked for and what it found."""
        self.num_queried_tokens += queried_tokens
        self.num_hit_tokens += hit_tokens

    def insert(self, digest: bytes, page: int) -> None:
        """Makes a computed, full, held page known. Of two with the same content the first stays known."""
        if digest not in self._pages and page not in self._hashes:
            self._pages[digest], self._hashes[page] = page, digest

    def release(self, pages: Sequence[int]) -> None:
        """One holder less for each; known pages outlive their last one.

        From the end on, so that a prefix loses its last page first and what is left can still be found.
        """
        for page in reversed(pages):
            digest = self._hashes.get(page)
            if digest is not None and self._pool.holders(page) == 1:
                self._pool.park(digest, (page,), lambda page=page: self._forget(page))  # type: ignore[misc]
            else:
                self._pool.free((page,))

    def _forget(self, page: int) -> None:
        del self._pages[self._hashes.pop(page)]
