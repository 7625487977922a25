"""Limits the number of accepted requests; excess requests are refused at once, with a time to retry."""

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
"""Finished requests from which the completion rate is computed."""
MAX_RETRY_AFTER: Final = 60


class QueueLimits:
    """Counts accepted and unfinished requests, in all and by tenant. `empty` is set while there are none."""

    def __init__(
        self,
        *,
        running: int,
        waiting: int,
        waiting_per_tenant: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set the limits: `running` requests plus the waiting ones, in all and per tenant."""
        self._limit, self._tenant_limit = running + waiting, running + waiting_per_tenant
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
        """Sequences that one request may have; larger requests would be refused on every retry."""
        return min(self._limit, self._tenant_limit)

    @property
    def age(self) -> float:
        """Seconds since this object was created."""
        return self._clock() - self._began

    @property
    def request_seconds(self) -> float:
        """Sum of the seconds that requests have spent here; its rate is the mean number of concurrent
        requests.
        """
        return self._spent + self.num_pending * (self._clock() - self._changed)

    def _count(self, more: int) -> None:
        self._spent, self._changed = self.request_seconds, self._clock()
        self.num_pending += more

    @contextmanager
    def slot(self, tenant: str) -> Iterator[None]:
        """Hold a queue slot for one request of the tenant until the block ends.

        Raises:
            Unavailable: the worker has no free slot.
            TooManyRequests: this tenant uses all slots that one tenant may have.
        """
        if self.num_pending >= self._limit:
            self.num_refused += 1
            raise Unavailable("the worker's queue is full", retry_after=self._retry_after())
        if self._by_tenant[tenant] >= self._tenant_limit:
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
        """Return seconds, 1 to 60, until a twentieth of the slots should free up at the recent rate."""
        if len(self._ends) < 2 or self._clock() <= self._ends[0]:
            return 1
        rate = len(self._ends) / (self._clock() - self._ends[0])
        return min(MAX_RETRY_AFTER, max(1, math.ceil(self.num_pending / 20 / rate)))
