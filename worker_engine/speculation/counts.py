"""Counters of speculation for the metrics; the engine's thread writes, any thread reads."""

from __future__ import annotations

from typing import Final

MAX_ADAPTERS: Final = 20
"""Number of adapters with their own counters, by last use; those of others are summed for good."""
OTHERS: Final = "_others"
"""Not an adapter's name: those begin with `t_` and a tenant's."""
BASE: Final = "_base"
_SHARE: Final = 0.02


class SpeculationCounts:
    """Draft tokens verified and accepted by adapter, and their recent number per step.

    Attributes:
        length: draft tokens verified per decoding sequence, averaged over about the last 50 steps.
    """

    def __init__(self) -> None:
        self._by_adapter: dict[str, tuple[int, int]] = {}
        self._others = (0, 0)
        self.length = 0.0

    def add(self, adapter: str, proposed: int, accepted: int) -> None:
        """Count verified and accepted drafts. `adapter` is its engine name, or `BASE`."""
        before = self._by_adapter.pop(adapter, (0, 0))
        self._by_adapter[adapter] = (before[0] + proposed, before[1] + accepted)
        if len(self._by_adapter) > MAX_ADAPTERS:
            # Its counts stay in the sum for good: Prometheus reads a decreasing counter as a reset.
            evicted = self._by_adapter.pop(next(iter(self._by_adapter)))
            self._others = (self._others[0] + evicted[0], self._others[1] + evicted[1])

    def note_length(self, guesses: int, sequences: int) -> None:
        """Record that a step verified `guesses` draft tokens of `sequences` decoding sequences."""
        self.length += _SHARE * (guesses / sequences - self.length)

    def by_adapter(self) -> dict[str, tuple[int, int]]:
        """Return (verified, accepted) draft tokens by adapter; at most `MAX_ADAPTERS`, and `OTHERS`."""
        counts = dict(self._by_adapter)
        if any(self._others):
            counts[OTHERS] = self._others
        return counts
