"""The retry budget: retries are limited to a share of the requests, so that they never pile up."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

SHARE: Final = 0.1
FLOOR_PER_SECOND: Final = 2.0
"""Retries that time alone earns, so that a gateway with few requests may retry as well."""
MOST: Final = 20.0


class RetryBudget:
    """A token bucket: over any time, retries <= MOST + SHARE * requests + FLOOR_PER_SECOND * seconds."""

    __slots__ = ("_clock", "_tokens", "_updated")

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tokens = MOST
        self._updated = clock()

    def deposit(self) -> None:
        """Count a request."""
        self._tokens = min(MOST, self._tokens + SHARE)

    def withdraw(self) -> bool:
        """Return True if a retry is allowed, and take it from the budget."""
        now = self._clock()
        self._tokens = min(MOST, self._tokens + (now - self._updated) * FLOOR_PER_SECOND)
        self._updated = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
