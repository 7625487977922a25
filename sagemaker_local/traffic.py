"""What alarms and scaling policies see of invocations: counts by component since they were last read."""

from __future__ import annotations

from collections import Counter


class Traffic:
    """Counters that whoever publishes metrics takes away."""

    def __init__(self) -> None:
        self._invocations: Counter[str] = Counter()
        self._no_capacity: Counter[str] = Counter()

    def invoked(self, component: str, base: str) -> None:
        """An adapter's invocation counts for its base too, whose copies it keeps busy."""
        self._invocations[component] += 1
        if base:
            self._invocations[base] += 1

    def no_capacity(self, component: str) -> None:
        """An invocation of a base, or of an adapter over it, found no copy."""
        self._no_capacity[component] += 1

    def take(self) -> tuple[Counter[str], Counter[str]]:
        """Invocations and failures for want of capacity since the last call."""
        taken = self._invocations, self._no_capacity
        self._invocations, self._no_capacity = Counter(), Counter()
        return taken
