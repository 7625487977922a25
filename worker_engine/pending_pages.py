"""Pages that running prompts are about to compute: who needs the same ones next need not compute them too.

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
"""Steps for which a sequence waits for a page that another is to compute, before it computes it itself.

Counted anew with each page that becomes known, so a long prefix is waited for as long as it makes progress.
"""


class PendingPages:
    """Which running sequence computes which full page of its prompt, by the page's hash."""

    def __init__(self, prefixes: PrefixCache) -> None:
        self._prefixes = prefixes
        self._owners: dict[bytes, Sequence] = {}
        # Those that wait in this step, so that a step counts once however often it asks.
        self._held: set[Sequence] = set()

    def __len__(self) -> int:
        return len(self._owners)

    def begin_step(self) -> None:
        self._held.clear()

    def add(self, sequence: Sequence) -> None:
        """A sequence that has just entered is about to compute its full pages but those it found."""
        pages = len(sequence.token_ids) // PAGE_SIZE
        for digest in sequence.chain.extend(sequence.token_ids, pages)[sequence.num_known_pages :]:
            self._owners.setdefault(digest, sequence)

    def drop(self, sequence: Sequence, hashes: Items[bytes]) -> None:
        """The sequence has computed these pages, or will not."""
        for digest in hashes:
            if self._owners.get(digest) is sequence:
                del self._owners[digest]

    def leave(self, sequence: Sequence) -> None:
        """A sequence leaves the batch: whoever waits for it waits no longer."""
        self.drop(sequence, sequence.chain.hashes[sequence.num_known_pages :])
        self._held.clear()

    def holds_back(self, sequence: Sequence) -> bool:
        """Whether the first page that the waiting sequence does not find is one that another computes now."""
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
