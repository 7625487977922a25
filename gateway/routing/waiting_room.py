"""Where requests wait for the first copy of a base model that has been scaled to zero.

A request that finds no copy is held, and said in Redis, where the control plane's controller reads it; when a
copy serves, all go on. The room is bounded: in requests and bytes, of each process and of each tenant in it,
and in seconds, by the deployment's policy. Who finds it full, or has waited so long in vain, gets 503 with a
time to come back.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from contracts.demand import DEMAND_SECONDS, demand_key
from gateway.errors import RoutesUnavailable, UpstreamUnreachable, Waking
from gateway.routing import Resolution
from gateway.routing.route_feed import RouteFeed

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.1
"""How often a held request looks whether there is a copy: one look-up in memory."""
ROOMS: Final = 4
"""All base models together have so many times one's places."""
BYTES: Final = 128 << 20
"""Of the bodies of all that wait in this process."""
SHARE: Final = 0.75
"""What one tenant may have of the places and of the bytes."""
_SAY_SECONDS: Final = 1.0
_KEEP_SECONDS: Final = 60
_AGAIN_SECONDS: Final = 10


class WaitingRoom:
    """Of one process. `run` it as a task; lives on the event loop."""

    def __init__(self, feed: RouteFeed, redis: Redis, *, most: int) -> None:
        """`most`: requests that may wait for one base model."""
        self._feed, self._redis, self._most = feed, redis, most
        self._name = f"{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self._held: Counter[str] = Counter()
        self._taken: Counter[tuple[str, ...]] = Counter()
        self._asked: dict[str, float] = {}
        self._said: set[str] = set()
        self._bell = asyncio.Event()

    @property
    def held(self) -> int:
        """Requests that wait now."""
        return self._held.total()

    def ask(self, base: str) -> None:
        """Says that a copy of `base` is wanted, though nobody waits for it."""
        if base not in self._asked:
            self._bell.set()
        self._asked[base] = time.monotonic() + DEMAND_SECONDS

    async def copies(self, resolution: Resolution, tenant: str, size: int) -> None:
        """Until its base model has copies, will get none, or is gone: the model is to be looked up again.

        Args:
            size: bytes of the request.

        Raises:
            Waking: the room is full, or the time was over first.
        """
        base, seconds = resolution.base, resolution.route.hold_seconds
        with self.place(base, tenant, size, seconds) as left:
            while left() > 0:
                await asyncio.sleep(min(POLL_SECONDS, left()))
                with suppress(RoutesUnavailable):
                    route = self._feed.current().bases.get(base)
                    if route is None or route.copies or not route.hold_seconds:
                        return
        raise self.waking(base)

    def check_there(self, base: str, copy_id: str) -> None:
        """Raises UpstreamUnreachable when the copy has left the routes."""
        with suppress(RoutesUnavailable):
            route = self._feed.current().bases.get(base)
            if route is None or all(copy.id != copy_id for copy in route.copies):
                raise UpstreamUnreachable(
                    f"The copy of {base!r} that this request waited for has been taken away; retry."
                )

    @contextmanager
    def place(self, base: str, tenant: str, size: int, seconds: float) -> Iterator[Callable[[], float]]:
        """A place of one request of `size` bytes for as long as the block takes; gives the seconds that are
        left of it.

        Raises:
            Waking: the room is full, or the tenant's share of it is.
        """
        parts = self._parts(base, tenant, size)
        if any(self._taken[part] + amount > most for part, amount, most in parts):
            raise self.waking(base)
        until = time.monotonic() + seconds
        self._held[base] += 1
        for part, amount, _ in parts:
            self._taken[part] += amount
        self._bell.set()
        try:
            yield lambda: until - time.monotonic()
        finally:
            for part, amount, _ in parts:
                self._taken[part] -= amount
                if not self._taken[part]:
                    del self._taken[part]
            self._held[base] -= 1
            if not self._held[base]:
                del self._held[base]

    def _parts(self, base: str, tenant: str, size: int) -> Sequence[tuple[tuple[str, ...], int, int]]:
        """(what the request takes of, how much, the bound) of the room: the base's, and the process's in
        requests and in bytes, each for everybody and for one tenant."""
        bounds = (
            (("base", base), 1, self._most),
            (("all",), 1, ROOMS * self._most),
            (("bytes",), size, BYTES),
        )
        return [
            part
            for name, amount, most in bounds
            for part in ((name, amount, most), ((*name, "of", tenant), amount, math.ceil(SHARE * most)))
        ]

    async def run(self) -> None:
        """Says in Redis who waits: at once when somebody comes, then every second."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._bell.wait(), _SAY_SECONDS)
            self._bell.clear()
            now = time.monotonic()
            self._asked = {base: until for base, until in self._asked.items() if until > now}
            wanted = dict.fromkeys(self._asked, 1) | dict(self._held)
            try:
                await self._say(wanted)
            except (RedisError, OSError) as error:
                logger.warning("waiting room: nobody is told of %d models: %s", len(wanted), error)
                await asyncio.sleep(_SAY_SECONDS)

    async def _say(self, wanted: dict[str, int]) -> None:
        for base in self._said - set(wanted):
            await self._redis.hdel(demand_key(base), self._name)
            self._said.discard(base)
        if not wanted:
            return
        # By one clock for all gateways and for who reads it: Redis's own.
        seconds, micros = await self._redis.time()
        for base, count in wanted.items():
            await self._redis.hset(demand_key(base), self._name, f"{count} {seconds}.{micros:06}")
            await self._redis.expire(demand_key(base), _KEEP_SECONDS)
            self._said.add(base)

    @staticmethod
    def waking(base: str) -> Waking:
        """What who waited in vain is told."""
        text = f"The base model {base!r} has no copy at this moment; one is being started. Retry in a while."
        return Waking(text, retry_after=_AGAIN_SECONDS)
