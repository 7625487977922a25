"""Sliding windows of requests or tokens, spent from a lease that Redis has already charged."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from contracts.limits import Limit
from gateway.admission import clock
from gateway.admission.account import Refused
from gateway.admission.broker import Broker
from gateway.admission.script import PREFIX, SLICES

_GUARD_SECONDS: Final = 0.001
"""Leases end this much early, to allow for drift between two clocks while a lease lasts."""
_IDLE_SECONDS: Final = 300.0


class WindowAccount:
    """One `requests` or `tokens` limit of one scope.

    Attributes:
        left: the rest of the lease; void from `until` (by `clock`) on.
        slice: slice of the window that the lease is charged to.
        free: the amount free for everyone at Redis' last answer.
    """

    def __init__(self, broker: Broker, scope: str, limit: Limit) -> None:
        self.kind = limit.kind
        self.scope = scope
        self.limit = limit
        self.width = max(1, round(limit.seconds * 1000 / SLICES))
        self.key = f"{PREFIX}{limit.kind}:{self.width}:{scope}"
        self.left = 0
        self.until = 0.0
        self.slice = -1
        self.free = limit.amount
        self._broker = broker
        self._low = -1
        self._used = 0
        self._want = 0
        self._asked = 0
        self._spent: dict[int, int] = {}
        self._back: dict[int, int] = {}
        self._owed: dict[int, int] = {}
        self._waiters: deque[tuple[int, asyncio.Future[int | Refused]]] = deque()
        self._refused_until = 0.0
        self._refused_need = 0
        self._wait_until = 0.0
        self._touched = False
        self._seen = clock.now()
        self._timer: asyncio.TimerHandle | None = None

    def has(self, need: int, now: float) -> bool:
        """Return True if `take` needs no round trip."""
        return now < self.until and need <= self.left

    def remaining(self, now: float) -> int:
        """Return the rest of the limit for everyone, as far as this process knows."""
        return self.free + (self.left if now < self.until else 0)

    def reset(self, now: float) -> float:
        """Return the seconds until charges made now leave the window."""
        return max(0.0, self.until - now) + self.limit.seconds

    def take(self, need: int) -> int:
        """Spend from the lease; return the slice that it was charged to, for `settle`."""
        self.left -= need
        self._used += need
        self._touched = True
        if self.left < self._low:
            self._low = -1
            self._broker.soon(self)
        return self.slice

    def refusal(self, need: int, now: float) -> Refused | None:
        """Return a refusal if the window is known to have no room, without a call."""
        if need > self.limit.amount:
            return Refused(self.limit.seconds)
        if now < self._refused_until and need >= self._refused_need and not self._broker.away:
            return Refused(max(0.0, self._wait_until - now))
        return None

    def claim(self, need: int, now: float) -> asyncio.Future[int | Refused]:
        """Return a future of the slice that `need` is charged to, or of a refusal."""
        future: asyncio.Future[int | Refused] = asyncio.get_running_loop().create_future()
        if self.has(need, now):
            future.set_result(self.take(need))
        elif self._broker.away:
            self._decide_alone(need, future)
        else:
            self._waiters.append((need, future))
            self._broker.now(self)
        return future

    def counts(self, charged: int, now: float) -> bool:
        """Return True if `charged`, a slice from `claim`, has not ended."""
        if charged == self.slice:
            return now < self.until
        return charged >= int(self._broker.redis_ms()) // self.width

    def settle(self, charged: int, reserved: int, actual: int) -> None:
        """Correct a charge of `reserved` in slice `charged` to the actual usage."""
        change = reserved - actual
        if not change:
            return
        if charged == self.slice and self.until > clock.now() and self.left + change >= 0:
            self.left += change
            self._used -= change
            return
        if change < 0:
            # More was used than reserved: the excess counts from now on, even beyond the limit.
            charged = int(self._broker.redis_ms()) // self.width
        self._spent[charged] = self._spent.get(charged, 0) - change
        self._back[charged] = self._back.get(charged, 0) + change
        self._broker.later(self)

    # The Account protocol, which the broker calls.

    def operation(self) -> list[str | int]:
        needs = [need for need, future in self._waiters if not future.done()]
        self._asked = len(self._waiters)
        if needs and self.left > 0:
            # A lease too small for the waiting requests is given back, so that all that is free is offered.
            self._back[self.slice] = self._back.get(self.slice, 0) + self.left
            self.left = 0
        self._seen = clock.now()
        back, self._back = self._back, {}
        # If the call fails, given-back amounts stay charged, and owed amounts are reported again.
        self._owed = {slice_: amount for slice_, amount in back.items() if amount < 0}
        first = min(needs, default=min(1, self._want))
        pairs = [number for item in back.items() for number in item]
        total = max(sum(needs), first)
        return ["w", self.limit.amount, self.width, first, total, self._want, len(back), *pairs]

    def answered(self, answer: list[int], sent: float) -> None:
        granted, slice_, ms, self.free, wait = answer
        now = clock.now()
        if granted:
            if slice_ != self.slice or now >= self.until:
                self._end_lease(slice_)
            self.left += granted
            self.until = sent + ms / 1000 - _GUARD_SECONDS
            self._low = self.left // 4
            self._arm()
            if now >= self.until:
                # The answer arrived too late to be used, which is no reason to refuse a request.
                self._asked = 0
        refused = Refused(max(wait, self.width) / 1000)
        for _ in range(min(self._asked, len(self._waiters))):
            need, future = self._waiters.popleft()
            if future.done():
                continue
            if self.has(need, now):
                future.set_result(self.take(need))
            else:
                self._refuse(need, now, refused)
                future.set_result(refused)
        self._asked = 0
        if self._waiters:
            self._broker.now(self)

    def postponed(self) -> bool:
        self._asked = 0
        return bool(self._waiters)

    def failed(self) -> None:
        self._asked = 0
        for slice_, amount in self._owed.items():
            self._back[slice_] = self._back.get(slice_, 0) + amount

    def forgotten(self) -> None:
        self._back = {slice_: -amount for slice_, amount in self._spent.items()}
        if self.left + self._used:
            self._back[self.slice] = self._back.get(self.slice, 0) - self.left - self._used

    def lapsed(self) -> None:
        """Nothing to do: a lease is already charged, and ends by itself."""

    def alone(self) -> None:
        waiters, self._waiters = self._waiters, deque()
        for need, future in waiters:
            if not future.done():
                self._decide_alone(need, future)

    def tick(self, now: float) -> bool:
        if now >= self.until:
            self._end_lease(-1)
        if not self._touched:
            self._want = 0
        self._touched = False
        return bool(self._back)

    def release(self) -> None:
        self._end_lease(-1)
        self._want = 0

    def idle(self, now: float) -> bool:
        if self._used or self.left or self._back or self._waiters:
            self._seen = now
        return now - self._seen > max(_IDLE_SECONDS, 2 * self.limit.seconds)

    # The lease.

    def _end_lease(self, slice_: int) -> None:
        """End the lease in hand: give back its unspent part, and record the spent part."""
        if self.left > 0:
            self._back[self.slice] = self._back.get(self.slice, 0) + self.left
            self._broker.later(self)
        if self._used:
            self._spent[self.slice] = self._spent.get(self.slice, 0) + self._used
            self._want = self._used + self._used // 4 + 1
            if len(self._spent) > 2 * SLICES:
                oldest = int(self._broker.redis_ms()) // self.width - SLICES - 1
                self._spent = {key: amount for key, amount in self._spent.items() if key >= oldest}
        self.left = self._used = 0
        self.slice = slice_
        self.until = 0.0

    def _arm(self) -> None:
        """Schedule a renewal shortly before the lease ends if it is in use, else give back its rest then."""
        if self._timer is not None:
            self._timer.cancel()
        rest = self.until - clock.now()
        delay = max(0.0, rest - 0.2 * self.width / 1000)
        self._timer = asyncio.get_running_loop().call_later(delay, self._renew)

    def _renew(self) -> None:
        self._timer = None
        now = clock.now()
        if self._used and now < self.until:
            self._want = self._used + self._used // 4 + 1
            self._timer = asyncio.get_running_loop().call_later(self.until - now, self._renew)
            self._broker.soon(self)
        elif now >= self.until:
            self._end_lease(-1)
            if self._back:
                self._broker.soon(self)
        else:
            self._timer = asyncio.get_running_loop().call_later(self.until - now, self._renew)

    def _refuse(self, need: int, now: float, refused: Refused) -> None:
        if now >= self._refused_until or need < self._refused_need:
            self._refused_need = need
        self._refused_until = now + self.width / 1000
        self._wait_until = now + refused.after

    def _decide_alone(self, need: int, future: asyncio.Future[int | Refused]) -> None:
        """Decide without Redis, by the process's share of the limit and its own record of the last window."""
        broker, now = self._broker, clock.now()
        if now >= self.until:
            self._end_lease(-1)
        elif need <= self.left:
            future.set_result(self.take(need))
            return
        present = int(broker.redis_ms()) // self.width
        spent = sum(amount for slice_, amount in self._spent.items() if slice_ >= present - SLICES)
        share = self.limit.amount // broker.gateways if broker.gateways else 0
        if spent + self._used + need > share:
            future.set_result(Refused(self.limit.seconds / 4))
            return
        self._spent[present] = self._spent.get(present, 0) + need
        self._back[present] = self._back.get(present, 0) - need
        broker.later(self)
        future.set_result(present)
