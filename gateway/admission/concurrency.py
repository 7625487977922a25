"""Concurrency limits: places that all gateways share, and a queue for them.

While most of a limit is free, each process holds some spare places across its reports, so that requests do
not wait for Redis. They go back when the limit fills, or when no request comes for a while.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from typing import Final

from contracts.limits import Limit
from gateway.admission import clock
from gateway.admission.account import Refused
from gateway.admission.broker import Broker
from gateway.admission.script import PREFIX

POLL_SECONDS: Final = 0.02
"""How often a process with waiting requests asks whether other processes have freed places."""
_IDLE_SECONDS: Final = 300.0
_RESTATE_SECONDS: Final = 600.0
"""Interval of repeated reports; a report lasts an hour in Redis."""
_AHEAD: Final = 4
"""All processes together hold at most one spare place in this many of a limit's places."""
_AHEAD_BEATS: Final = 4
"""Heartbeats after the last request during which spare places are kept."""
_NEVER: Final = 1 << 62


class ConcurrencyAccount:
    """One `concurrency` limit of one scope.

    Attributes:
        held: places that Redis counts as this process's.
        used: held places with a request in them; never above `held` while Redis answers.
    """

    kind: Final = "concurrency"

    def __init__(self, broker: Broker, scope: str, limit: Limit) -> None:
        self.scope = scope
        self.limit = limit
        self.key = f"{PREFIX}concurrency:{scope}"
        self.held = 0
        self.used = 0
        self._broker = broker
        self._free = limit.amount
        self._peak = self._recent = 0
        self._plenty, self._granted = True, False
        self._kept = self._quiet = 0
        self._low = _NEVER
        self._order = itertools.count()
        self._waiters: list[tuple[int, int, asyncio.Future[bool], float]] = []
        self._length = 0
        self._full = self._released = False
        self._seen = self._stated = clock.now()
        self._poll: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiters)

    def has(self, now: float) -> bool:
        """Return True if `take` may follow at once; waiting requests go first."""
        return self.used < self.held and not self._waiters and now < self._broker.dead_at

    def take(self) -> None:
        """Occupy a place until `give`."""
        self.used += 1
        if self.used > self._peak:
            self._peak = self.used
        self._quiet = 0
        if self.used > self._low:
            self._low = _NEVER
            self._broker.soon(self)

    def give(self) -> None:
        """Free a place: for the first in the queue, or for other processes if they lack places."""
        self.used -= 1
        if self._broker.away:
            self.held = max(self.used, min(self.held, self._share()))
        elif clock.now() >= self._broker.dead_at:
            # This process was suspended, and others may have its places by now.
            self.held = self.used
        self._serve()
        if self.used < self.held and self._free <= 0:
            self._broker.soon(self)

    async def wait(self, priority: int, seconds: float, length: int) -> Refused | None:
        """Take a place, after waiting requests of a lower `priority` number and earlier ones of the same.

        Returns a refusal if the limit stays full for `seconds`, or if `length` requests wait already. Only
        Redis knows if the limit is full, so no request is refused before its answer.
        """
        if self._broker.away and self.used < self._share():
            self.held = max(self.held, self.used + 1)
            self.take()
            return None
        refused = Refused(max(1.0, seconds))
        self._length = length
        if self.limit.amount == 0 or (self._full and len(self._waiters) >= length):
            return refused
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        waiter = (priority, next(self._order), future, clock.now() + seconds)
        heapq.heappush(self._waiters, waiter)
        self._broker.now(self)
        try:
            return None if await future else refused
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.result():
                self.give()
            raise
        finally:
            self._forget_done()

    # The Account protocol, which the broker calls.

    def operation(self) -> list[str | int]:
        now = clock.now()
        if self._waiters:
            self._quiet = 0
        ahead = self._ahead()
        recent = 0 if self._waiters or self._released else max(self._recent, self._peak) - self.used
        # Until the answer, only the reported places may be used: others may get the rest.
        sure = self._granted and now < self._broker.dead_at
        self._kept = max(0, min(ahead, self.held - self.used)) if sure else 0
        self.held = self.used + self._kept
        self._stated = now
        want = max(0, max(recent, ahead) - self._kept)
        return ["c", self.limit.amount, self.used, self._kept, len(self._waiters), want]

    def answered(self, answer: list[int], sent: float) -> None:
        if clock.now() >= self._broker.dead_at:
            # The answer was read after a suspension: others may have these places, but no request is refused.
            self.forgotten()
            if self._waiters:
                self._broker.now(self)
            return
        self.held, self._free = answer
        self._granted = True
        self._serve()
        self._look_ahead()
        self._dismiss(full=self._free <= 0)
        if self._waiters and self._poll is None:
            self._poll = asyncio.get_running_loop().call_later(POLL_SECONDS, self._ask)

    def postponed(self) -> bool:
        return bool(self._waiters)

    def failed(self) -> None:
        """Nothing to undo: `operation` already gave up every place that it did not report."""

    def forgotten(self) -> None:
        """Keep only the used places: the spare ones are anyone's now. The next operation reports them."""
        self.held = self.used
        self._granted = False

    def lapsed(self) -> None:
        """Keep only the used places, as after `forgotten`."""
        self.forgotten()

    def alone(self) -> None:
        self._granted = False
        self.held = max(self.used, self._share())
        self._serve()
        self.held = self.used
        self._dismiss(full=True)

    def tick(self, now: float) -> bool:
        self._recent, self._peak = self._peak, self.used
        self._quiet += 1
        return self.held > self.used or (self.held > 0 and now - self._stated > _RESTATE_SECONDS)

    def release(self) -> None:
        self._released = True

    def idle(self, now: float) -> bool:
        if self.held or self._waiters:
            self._seen = now
        return now - self._seen > _IDLE_SECONDS

    def _look_ahead(self) -> None:
        spare = self.held - self.used
        self._plenty = 2 * (self._free + spare) >= self.limit.amount
        ahead = self._ahead()
        self._low = self.held - 1 - spare // 4 if ahead else _NEVER
        if self.used > self._low or (self._kept and not self._plenty):
            # Few places are left, or others lack places: the spare ones go back at once.
            self._low = _NEVER
            self._broker.soon(self)

    def _ahead(self) -> int:
        """Return the number of spare places to hold, whatever recent usage was."""
        if self._released or not self._plenty or self._quiet > _AHEAD_BEATS:
            return 0
        return self.limit.amount // (_AHEAD * max(1, self._broker.gateways))

    def _share(self) -> int:
        gateways = self._broker.gateways
        return self.limit.amount // gateways if gateways else 0

    def _serve(self) -> None:
        while self._waiters and self.used < self.held:
            future = heapq.heappop(self._waiters)[2]
            if not future.done():
                self.take()
                future.set_result(True)

    def _dismiss(self, *, full: bool) -> None:
        """Refuse requests whose time is up and, if the limit is full, those beyond the queue's length."""
        now = clock.now()
        for place, waiter in enumerate(sorted(self._waiters)):
            if not waiter[2].done() and ((full and place >= self._length) or waiter[3] <= now):
                waiter[2].set_result(False)
        self._forget_done()
        self._full = full and bool(self._waiters)

    def _forget_done(self) -> None:
        self._waiters = [waiter for waiter in self._waiters if not waiter[2].done()]
        heapq.heapify(self._waiters)

    def _ask(self) -> None:
        self._poll = None
        if self._waiters:
            self._broker.now(self)
