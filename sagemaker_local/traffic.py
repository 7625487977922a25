"""Counts of invocations by component, for alarms and scaling policies."""

from __future__ import annotations

from collections import Counter


class Traffic:
    """Counters that each publication of metrics reads and resets."""

    def __init__(self) -> None:
        self._invocations: Counter[str] = Counter()
        self._no_capacity: Counter[str] = Counter()

    def invoked(self, component: str, base: str) -> None:
        """Count an invocation; an adapter's also counts for its base, whose copies serve it."""
        self._invocations[component] += 1
        if base:
            self._invocations[base] += 1

    def no_capacity(self, component: str) -> None:
        """Count an invocation of a base, or of its adapter, that found no copy."""
        self._no_capacity[component] += 1

    def take(self) -> tuple[Counter[str], Counter[str]]:
        """Return and reset the invocations, and the failures for lack of capacity."""
        taken = self._invocations, self._no_capacity
        self._invocations, self._no_capacity = Counter(), Counter()
        return taken
