"""How many requests the worker takes on: beyond that it says so at once, and when to come back."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from worker_engine.errors import TooManyRequests, Unavailable

_LAST: Final = 64
"""Requests whose ends the rate is taken from."""
MAX_RETRY_AFTER: Final = 60


class QueueLimits:
    """Requests accepted and not finished, in all and by tenant. `empty` is set while there are none."""

    def __init__(
        self,
        *,
        running: int,
        waiting: int,
        waiting_per_tenant: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`running` requests run together; so many may wait beside them, in all and of one tenant."""
        self._most, self._most_of_tenant = running + waiting, running + waiting_per_tenant
        self._clock = clock
        self._by_tenant: Counter[str] = Counter()
        self._ends: deque[float] = deque(maxlen=_LAST)
        self.num_pending = 0
        self.num_refused = 0
        self._began = self._changed = clock()
        self._spent = 0.0
        self.empty = asyncio.Event()
        self.empty.set()

    @property
    def most_at_once(self) -> int:
        """Sequences that one request may have: with more, it would be refused however often it came."""
        return min(self._most, self._most_of_tenant)

    @property
    def age(self) -> float:
        """Seconds since it was made."""
        return self._clock() - self._began

    @property
    def request_seconds(self) -> float:
        """Seconds that requests have been here, summed up: its rate is how many at a time."""
        return self._spent + self.num_pending * (self._clock() - self._changed)

    def _count(self, more: int) -> None:
        self._spent, self._changed = self.request_seconds, self._clock()
        self.num_pending += more

    @contextmanager
    def place(self, tenant: str) -> Iterator[None]:
        """A request's place, held for as long as the block runs.

        Raises:
            Unavailable: the worker has no place left.
            TooManyRequests: this tenant has taken all places that one may have.
        """
        if self.num_pending >= self._most:
            self.num_refused += 1
            raise Unavailable("the worker's queue is full", retry_after=self._retry_after())
        if self._by_tenant[tenant] >= self._most_of_tenant:
            self.num_refused += 1
            raise TooManyRequests(
                f"this tenant has {self._by_tenant[tenant]} requests here, as many as one may have",
                retry_after=self._retry_after(),
            )
        self._count(1)
        self.empty.clear()
        self._by_tenant[tenant] += 1
        try:
            yield
        finally:
            self._count(-1)
            if not self.num_pending:
                self.empty.set()
            self._by_tenant[tenant] -= 1
            if not self._by_tenant[tenant]:
                del self._by_tenant[tenant]
            self._ends.append(self._clock())

    def _retry_after(self) -> int:
        """Seconds in which, at the rate of late, a twentieth of the places come free; 1 to 60."""
        if len(self._ends) < 2 or self._clock() <= self._ends[0]:
            return 1
        rate = len(self._ends) / (self._clock() - self._ends[0])
        return min(MAX_RETRY_AFTER, max(1, math.ceil(self.num_pending / 20 / rate)))
