"""Budgets: a hard stop per period or for prepaid credit, spent from a lease that counts as spent in Redis.

Amounts are nano-units of the price book's currency. Redis adds the gateways' reports to the baseline that
the control plane computes from the database, and drops each report once the baseline includes it.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import math
import time
from collections import deque
from typing import Final

from contracts.limits import PREPAID, Limit, budget_key, budget_period
from gateway.admission import clock
from gateway.admission.account import Refused
from gateway.admission.broker import Broker

REPORT_SECONDS: Final = 180
"""Usage of this many seconds is reported again after Redis lost its data; the database has older usage."""
BASELINE_SECONDS: Final = 6.0
"""How long a request waits for the baseline of a new budget, or of one that Redis has lost."""
_POLL_SECONDS: Final = 0.1
_REFUSED_SECONDS: Final = 0.5
_IDLE_SECONDS: Final = 300.0
_TOP_UP_SECONDS: Final = 60.0
"""Retry-After of a spent prepaid budget, which a top-up can fill at any time."""


class BudgetAccount:
    """One `budget` of one scope in one period, or its `prepaid` credit, which has no period.

    Attributes:
        left: the rest of the lease. Redis counts it as spent while this process lives.
        ends_at: Unix seconds at which the period ends; infinite without a period.
        alerted: True if spending is above the limit's `alert`.
    """

    kind: Final = "budget"

    def __init__(self, broker: Broker, scope: str, limit: Limit, now: dt.datetime) -> None:
        self.scope = scope
        self.limit = limit
        if limit.kind == "prepaid":
            self.key, self.ends_at = budget_key(scope, PREPAID), math.inf
        else:
            period, end = budget_period(limit.period, now)
            self.key, self.ends_at = budget_key(scope, period), end.timestamp()
        self.left = 0
        self.alerted = False
        self._broker = broker
        self._reserved = 0
        self._spent = 0
        self._reported = 0
        self._taken = 0
        self._want = 0
        self._asked = 0
        self._recent: deque[tuple[int, int]] = deque()
        self._waiters: deque[tuple[int, asyncio.Future[Refused | None]]] = deque()
        self._unknown_since = 0.0
        self._refused_until = 0.0
        self._refused_need = 0
        self._seen = clock.now()

    def has(self, need: int) -> bool:
        """Return True if `take` needs no round trip."""
        return need <= self.left

    def take(self, need: int) -> None:
        """Reserve from the lease, until `settle`."""
        self.left -= need
        self._reserved += need
        self._taken += need

    def settle(self, reserved: int, actual: int) -> None:
        """Replace the reserved amount by the actual one, even beyond the lease."""
        self._reserved -= reserved
        self.left += reserved - actual
        if actual:
            self._spent += actual
            second = int(clock.now())
            if self._recent and self._recent[-1][0] == second:
                actual += self._recent.pop()[1]
            self._recent.append((second, actual))
            while self._recent[0][0] < second - REPORT_SECONDS:
                self._recent.popleft()
        self._broker.later(self)

    def refusal(self, need: int, now: float) -> Refused | None:
        """Return a refusal if the budget is known to have no room, without a call."""
        if need > self.limit.amount or (now < self._refused_until and need >= self._refused_need):
            return self._refused()
        return None

    def claim(self, need: int) -> asyncio.Future[Refused | None]:
        """Return a future that resolves to None once `need` is reserved, or to a refusal."""
        future: asyncio.Future[Refused | None] = asyncio.get_running_loop().create_future()
        if self.has(need):
            self.take(need)
            future.set_result(None)
        elif self._broker.away:
            # The other processes' spending is unknown, so only this process's own lease may be spent.
            future.set_result(Refused(2.0, unknown=True))
        else:
            self._waiters.append((need, future))
            self._broker.now(self)
        return future

    # The Account protocol, which the broker calls.

    def operation(self) -> list[str | int]:
        needs = [need for need, future in self._waiters if not future.done()]
        self._asked = len(self._waiters)
        self._reported, self._spent = self._spent, 0
        # `spent` already includes a debt. A lease too small for the waiting requests is given back, so that
        # the answer covers all that is free.
        self.left = 0 if needs else max(0, self.left)
        hold = self._reserved + self.left
        return ["b", self.limit.amount, self._reported, hold, min(needs, default=0), sum(needs), self._want]

    def answered(self, answer: list[int], sent: float) -> None:
        granted, _, gone = answer
        self._reported = 0
        if granted > 0:
            self.left += granted
        now = clock.now()
        if granted >= 0:
            self.alerted = self.limit.alert is not None and gone >= self.limit.alert
            self._unknown_since = 0.0
        elif self._waiters:
            self._unknown_since = self._unknown_since or now
            if now - self._unknown_since < BASELINE_SECONDS:
                self._asked = 0
                asyncio.get_running_loop().call_later(_POLL_SECONDS, self._broker.now, self)
                return
        for _ in range(min(self._asked, len(self._waiters))):
            need, future = self._waiters.popleft()
            if future.done():
                continue
            if self.has(need):
                self.take(need)
                future.set_result(None)
            elif granted < 0:
                future.set_result(Refused(BASELINE_SECONDS, unknown=True))
            else:
                if now >= self._refused_until or need < self._refused_need:
                    self._refused_need = need
                self._refused_until = now + _REFUSED_SECONDS
                future.set_result(self._refused())
        self._asked = 0
        if self._waiters:
            self._broker.now(self)

    def postponed(self) -> bool:
        self._reported = self._asked = 0
        return bool(self._waiters)

    def failed(self) -> None:
        # Redis may have applied the report. It then counts twice until the next baseline, on the safe side.
        self._spent += self._reported
        self._reported = self._asked = 0

    def forgotten(self) -> None:
        since = clock.now() - REPORT_SECONDS
        self._spent = max(self._spent, sum(amount for at, amount in self._recent if at >= since))

    def lapsed(self) -> None:
        """Redis may have counted the lease as spent; reporting it again errs on the safe side."""

    def alone(self) -> None:
        waiters, self._waiters = self._waiters, deque()
        for _, future in waiters:
            if not future.done():
                future.set_result(Refused(2.0, unknown=True))

    def tick(self, now: float) -> bool:
        self._want, self._taken = 4 * self._taken, 0
        if self.left > 0 and not self._want and not self._broker.away:
            self.left = 0
            return True
        return self._spent != 0

    def release(self) -> None:
        self.left = self._want = 0

    def _refused(self) -> Refused:
        seconds = self.ends_at - time.time()
        # A top-up of a prepaid budget has no known time.
        return Refused(max(1.0, seconds) if math.isfinite(seconds) else _TOP_UP_SECONDS)

    def idle(self, now: float) -> bool:
        if self.left or self._reserved or self._spent or self._waiters:
            self._seen = now
        return now - self._seen > _IDLE_SECONDS
