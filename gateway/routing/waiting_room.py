"""Holds requests for the first copy of a base model that is scaled to zero.

A request that finds no copy is held and reported in Redis, where the control plane's controller reads it.
When a copy serves, all held requests go on. The room is bounded in requests, bytes and seconds, for each
process and each tenant. A request that finds it full, or waits too long, gets 503 with a Retry-After.
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
from dataclasses import replace
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from contracts.demand import DEMAND_SECONDS, demand_key
from gateway.errors import RoutesUnavailable, UpstreamUnreachable, Waking
from gateway.routing import Resolution
from gateway.routing.images import reading_images
from gateway.routing.route_feed import RouteFeed

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.1
"""How often a held request checks for a copy: one look-up in memory."""
ROOMS: Final = 4
"""All base models together have this many times the places of one."""
BYTES: Final = 128 << 20
"""Most bytes of all held requests' bodies in this process."""
SHARE: Final = 0.75
"""Largest share of one tenant in the places and in the bytes."""
_SAY_SECONDS: Final = 1.0
_KEEP_SECONDS: Final = 60
_AGAIN_SECONDS: Final = 10


class WaitingRoom:
    """The waiting room of one process. `run` it as a task; use it on the event loop only."""

    def __init__(self, feed: RouteFeed, redis: Redis, *, most: int) -> None:
        """`most`: most held requests of one base model."""
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
        """Report demand for a copy of `base`, though no request waits for it."""
        if base not in self._asked:
            self._bell.set()
        self._asked[base] = time.monotonic() + DEMAND_SECONDS

    async def copies(
        self, resolution: Resolution, tenant: str, size: int, *, images: int = 0, waited: float = 0.0
    ) -> None:
        """Wait until the base model has copies, will get none, or is gone; then resolve the model again.

        Args:
            size: bytes of the request.
            images: wait for a copy that reads so many images.
            waited: seconds of the request's time that are already over.

        Raises:
            Waking: the room is full, or the request's time is over.
        """
        base, adapter = resolution.base, resolution.adapter
        seconds = resolution.route.hold_seconds - waited
        with self.place(base, tenant, size, seconds) as left:
            while left() > 0:
                await asyncio.sleep(min(POLL_SECONDS, left()))
                with suppress(RoutesUnavailable):
                    route = self._feed.current().bases.get(base)
                    if route is not None and images:
                        route = reading_images(replace(resolution, route=route), images).route
                    if route is None or route.copies_for(adapter) or not route.hold_seconds:
                        return
                    if not route.may_get_copy(adapter):
                        return
        raise self.waking(base)

    def check_there(self, base: str, copy_id: str) -> None:
        """Raise UpstreamUnreachable if the copy has left the routes."""
        with suppress(RoutesUnavailable):
            route = self._feed.current().bases.get(base)
            if route is None or all(copy.id != copy_id for copy in route.copies):
                raise UpstreamUnreachable(
                    f"The copy of {base!r} that this request waited for was removed; retry."
                )

    @contextmanager
    def place(self, base: str, tenant: str, size: int, seconds: float) -> Iterator[Callable[[], float]]:
        """Hold a place for a request of `size` bytes during the block; yield a function of the seconds left.

        Raises:
            Waking: the room, or the tenant's share of it, is full.
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
        """Return (counter, amount, bound) of each counter that the request takes from.

        They are the base model's requests and the process's requests and bytes, in all and for one tenant.
        """
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
        """Publish the demand in Redis: at once when a request arrives, then every second."""
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
                logger.warning(
                    "waiting room: cannot publish the demand for %d models: %s", len(wanted), error
                )
                await asyncio.sleep(_SAY_SECONDS)

    async def _say(self, wanted: dict[str, int]) -> None:
        for base in self._said - set(wanted):
            await self._redis.hdel(demand_key(base), self._name)
            self._said.discard(base)
        if not wanted:
            return
        # Redis's own clock is the same for all gateways and readers.
        seconds, micros = await self._redis.time()
        for base, count in wanted.items():
            await self._redis.hset(demand_key(base), self._name, f"{count} {seconds}.{micros:06}")
            await self._redis.expire(demand_key(base), _KEEP_SECONDS)
            self._said.add(base)

    @staticmethod
    def waking(base: str) -> Waking:
        """Return the error of a request that waited in vain."""
        text = f"The base model {base!r} has no copy at this moment; one is being started. Retry in a while."
        return Waking(text, retry_after=_AGAIN_SECONDS)
