"""Times of decode steps in which all rows use one adapter: with the base's weights, and with merged ones."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass


@dataclass(slots=True)
class StepTotals:
    """Sums over decode steps.

    Attributes:
        rows: sum of the steps' rows, one for each sequence.
    """

    steps: int = 0
    rows: int = 0
    seconds: float = 0.0

    @property
    def mean_ms(self) -> float | None:
        """Mean milliseconds of a step; None before the first."""
        return self.seconds * 1e3 / self.steps if self.steps else None


class MergeTimings:
    """Times steps from launch to launch; both kinds of steps are computed for the same adapter.

    A step counts only if the next one continues one of its sequences, so that no idle time is included.

    Attributes:
        base: steps with the base's weights and the adapter's products; steps that also merge a layer are left
            out.
        merged: steps with merged weights.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.base, self.merged = StepTotals(), StepTotals()
        self._last: tuple[StepTotals | None, Set[str], float] = None, frozenset(), 0.0

    def launched(self, requests: Set[str], *, merged: bool | None) -> None:
        """Record that a step is launched, which ends the previous one.

        Args:
            requests: ids of the step's requests.
            merged: which weights it uses; None for a step that is not timed.
        """
        totals, before, at = self._last
        now = self._clock()
        if totals is not None and not before.isdisjoint(requests):
            totals.steps += 1
            totals.rows += len(before)
            totals.seconds += now - at
        kind = None if merged is None else self.merged if merged else self.base
        self._last = kind, requests, now
