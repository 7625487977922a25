"""The broker of leases: batches the accounts' operations into one script call, and sends heartbeats.

While Redis is away (`Broker.away`) each account decides alone, by its kind. A process that has never reached
Redis has no share of any limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Awaitable
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from gateway.admission import clock
from gateway.admission.account import Account
from gateway.admission.script import EPOCH, GATEWAY_TTL_MS, GATEWAYS, LEASE, SLOTS

logger = logging.getLogger(__name__)

BEAT_SECONDS: Final = 0.5
SOON_SECONDS: Final = 0.01
"""How long operations without a waiting request are gathered, so that busy limits share a call."""
_BATCH: Final = 128
_WAITS: Final = 10
_WAIT_SECONDS: Final = 0.1
"""Redis counts as away after _WAITS waits of this length without an answer."""
_GUARD_SECONDS: Final = 0.1
_RETRY_SECONDS: Final = 0.25


def line(url: str) -> Redis:
    """Return a Redis client for the broker, without retries (a repeated lease is lost) or timeouts."""
    return Redis.from_url(url, socket_timeout=None, socket_connect_timeout=1, retry=Retry(NoBackoff(), 0))


class Broker:
    """The process's only connection to the limits in Redis. `run` it as a task.

    Attributes:
        away: True while Redis does not answer.
        gateways: processes that draw on the same limits, as of the last answer; 0 before the first.
        dead_at: time by `clock` at which Redis takes this process for dead, unless it calls before.
    """

    def __init__(self, redis: Redis, log_slot: str) -> None:
        """`redis` is a client from `line`."""
        self._script = redis.register_script(LEASE)
        self._slot = log_slot
        self._name = uuid.uuid4().hex
        self._epoch = ""
        self._pending: dict[Account, None] = {}
        self._accounts: set[Account] = set()
        self._bell = asyncio.Event()
        self._handle: asyncio.TimerHandle | None = None
        self._beaten = 0.0
        self._offset_ms = 0.0
        self.away = True
        self.gateways = 0
        self.dead_at = 0.0

    def add(self, account: Account) -> None:
        self._accounts.add(account)

    def drop(self, account: Account) -> None:
        self._accounts.discard(account)
        self._pending.pop(account, None)

    def now(self, account: Account) -> None:
        """Call for `account` at once, because a request waits."""
        self._pending[account] = None
        self._ring()

    def soon(self, account: Account) -> None:
        """Call for `account` within SOON_SECONDS."""
        self._pending[account] = None
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_later(SOON_SECONDS, self._ring)

    def later(self, account: Account) -> None:
        """Include `account` in the next call or heartbeat."""
        self._pending[account] = None

    def redis_ms(self) -> float:
        """Return Redis' clock in ms, estimated; counted from 0 before the first answer."""
        return clock.now() * 1000 + self._offset_ms

    async def run(self) -> None:
        """Call Redis until cancelled; an outage is logged once and waited out."""
        while True:
            accounts = self._collect()
            wait = BEAT_SECONDS
            try:
                wait = await self._call(accounts)
            except (RedisError, OSError, TimeoutError) as error:
                if not self.away:
                    logger.warning("limits: Redis is unreachable; each process enforces its share: %s", error)
                self.away = True
                for account in accounts:
                    account.failed()
                for account in self._accounts:
                    account.alone()
                wait = _RETRY_SECONDS
            await self._pause(wait)

    async def close(self) -> None:
        """Give back everything held, as far as Redis answers."""
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            for account in self._accounts:
                account.release()
                self._pending[account] = None
            for _ in range(3 + len(self._accounts) // _BATCH):
                await self._call(self._collect())

    def _collect(self) -> list[Account]:
        if self.away or not self._epoch:
            # Greet Redis first: an operation's content is lost with a call that fails.
            return []
        accounts = list(self._pending)[:_BATCH]
        for account in accounts:
            del self._pending[account]
        if self._pending:
            self._bell.set()
        return accounts

    async def _call(self, accounts: list[Account]) -> float:
        """Call the script once, and return the seconds to wait until the next call."""
        keys = [GATEWAYS, EPOCH, SLOTS]
        arguments: list[str | int] = [self._name, self._slot, self._epoch]
        for account in accounts:
            keys.append(account.key)
            arguments += account.operation()
        sent = clock.now()
        answer = await _await_answer(self._script(keys=keys, args=arguments))
        if self.away or clock.now() >= self.dead_at:
            self._state_anew()
        self.dead_at = sent + GATEWAY_TTL_MS / 1000 - _GUARD_SECONDS
        (epoch, quarantine, self.gateways, redis_ms), *answers = answer
        self._offset_ms = redis_ms - sent * 1000
        returned, self.away = self.away, False
        if returned:
            logger.info("limits: Redis is reachable again; gateway processes: %d", self.gateways)
        if epoch.decode() != self._epoch:
            return self._begin_epoch(epoch.decode(), accounts)
        for account, fields in zip(accounts, answers, strict=True):
            if not quarantine:
                account.answered(fields, sent)
            elif account.postponed():
                self._pending[account] = None
        if quarantine:
            return min(BEAT_SECONDS, int(quarantine) / 1000 + 0.01)
        return BEAT_SECONDS

    def _begin_epoch(self, epoch: str, accounts: list[Account]) -> float:
        """Start over with new data in Redis: every account reports its holdings at once."""
        if self._epoch:
            logger.warning("limits: Redis lost its data; reporting current usage")
        self._epoch = epoch
        for account in accounts:
            account.failed()
        for account in self._accounts:
            account.forgotten()
            self._pending[account] = None
        return 0.0

    def _state_anew(self) -> None:
        """Have all accounts report: Redis missed what was taken without it, or took this process for dead."""
        for account in self._accounts:
            account.lapsed()
            self._pending[account] = None
        self._bell.set()

    async def _pause(self, seconds: float) -> None:
        """Wait until the next heartbeat, or until an account needs a call."""
        if not self._bell.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._bell.wait()
        self._bell.clear()
        now = clock.now()
        if now - self._beaten >= BEAT_SECONDS:
            self._beaten = now
            for account in self._accounts:
                if account.tick(now):
                    self._pending[account] = None

    def _ring(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._bell.set()


async def _await_answer(call: Awaitable[Any]) -> Any:
    """Return Redis' answer. Raises TimeoutError after _WAITS waits during which this process was awake.

    To a process that was suspended for a second Redis seems away, though the answer is in the socket. It
    would then use its own share of limits that other processes draw in full.
    """
    task = asyncio.ensure_future(call)
    waits = 0
    try:
        while waits < _WAITS:
            before = clock.now()
            if (await asyncio.wait({task}, timeout=_WAIT_SECONDS))[0]:
                return task.result()
            waits += clock.now() - before < 2 * _WAIT_SECONDS
        raise TimeoutError(f"no answer in {_WAITS * _WAIT_SECONDS:g} s")
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
