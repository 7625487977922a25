"""What speculation did, for the metrics: counted by the engine's thread, read by any."""

from __future__ import annotations

from typing import Final

MAX_ADAPTERS: Final = 20
"""Adapters with counts of their own, those used last; the counts of others are added up for good."""
OTHERS: Final = "_others"
"""No adapter's name: those begin with `t_` and a tenant's."""
BASE: Final = "_base"
_SHARE: Final = 0.02


class SpeculationCounts:
    """Guesses verified and kept, by adapter, and how long they lately were.

    Attributes:
        length: guesses verified for a token that was due anyway, averaged over about the last 50 steps.
    """

    def __init__(self) -> None:
        self._by_adapter: dict[str, tuple[int, int]] = {}
        self._others = (0, 0)
        self.length = 0.0

    def add(self, adapter: str, proposed: int, accepted: int) -> None:
        """`adapter` is its engine name, or `BASE`."""
        before = self._by_adapter.pop(adapter, (0, 0))
        self._by_adapter[adapter] = (before[0] + proposed, before[1] + accepted)
        if len(self._by_adapter) > MAX_ADAPTERS:
            # Not back again: a counter that fell would be read as one that began anew.
            gone = self._by_adapter.pop(next(iter(self._by_adapter)))
            self._others = (self._others[0] + gone[0], self._others[1] + gone[1])

    def note_length(self, guesses: int, sequences: int) -> None:
        """A step verified so many guesses of so many decoding sequences."""
        self.length += _SHARE * (guesses / sequences - self.length)

    def by_adapter(self) -> dict[str, tuple[int, int]]:
        """(guesses verified, guesses kept) by adapter; at most `MAX_ADAPTERS` and `OTHERS`."""
        told = dict(self._by_adapter)
        if any(self._others):
            told[OTHERS] = self._others
        return told
