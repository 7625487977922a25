"""Tracks prompt pages that running sequences will compute, so that other sequences wait and reuse them.

Prompt tokens computed with SmolLM2-135M in steps of 2,048 rows, without and with this: 800 and 224 for four
choices of a prompt of 200 tokens, 2,368 and 640 for 16 prompts of 220 whose first 200 are the same. In steps
of 128 rows, where the first is done before most others begin, 288 and 224, 704 and 640.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Final

from worker_engine.config import PAGE_SIZE
from worker_engine.prefix_cache import PrefixCache
from worker_engine.sequence import Sequence

MAX_HELD: Final = 16
"""Steps for which a sequence waits for a page that another will compute, before computing it itself.

The count restarts with each page that becomes known, so a long prefix is awaited while it makes progress.
"""


class PendingPages:
    """Maps hashes of full prompt pages to the running sequence that computes them."""

    def __init__(self, prefixes: PrefixCache) -> None:
        self._prefixes = prefixes
        self._owners: dict[bytes, Sequence] = {}
        # Sequences waiting in this step, so that a step counts once however often it is queried.
        self._held: set[Sequence] = set()

    def __len__(self) -> int:
        return len(self._owners)

    def begin_step(self) -> None:
        self._held.clear()

    def add(self, sequence: Sequence) -> None:
        """Register the full pages that a newly admitted sequence will compute."""
        pages = len(sequence.token_ids) // PAGE_SIZE
        for digest in sequence.chain.extend(sequence.token_ids, pages)[sequence.num_known_pages :]:
            self._owners.setdefault(digest, sequence)

    def drop(self, sequence: Sequence, hashes: Items[bytes]) -> None:
        """Forget pages that the sequence has computed, or will not compute."""
        for digest in hashes:
            if self._owners.get(digest) is sequence:
                del self._owners[digest]

    def forget(self, sequence: Sequence) -> None:
        """Forget the pages of a sequence that leaves the batch, so that no sequence waits for it."""
        self.drop(sequence, sequence.chain.hashes[sequence.num_known_pages :])
        self._held.clear()

    def holds_back(self, sequence: Sequence) -> bool:
        """Return True if a running sequence is computing the waiting sequence's first missing page."""
        if sequence in self._held:
            return True
        if not self._owners:
            return False
        hashes = sequence.reusable_hashes()
        known = self._prefixes.num_known(hashes)
        if known == len(hashes) or hashes[known] not in self._owners:
            return False
        if known > sequence.num_found_pages:
            sequence.num_found_pages, sequence.num_held = known, 0
        sequence.num_held += 1
        if sequence.num_held > MAX_HELD:
            return False
        self._held.add(sequence)
        return True
