"""Calls that wake a sleeping copy: of all requests that wait for one copy, one at a time calls it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from gateway.backends.base import BackendRequest
from gateway.routing.waiting_room import POLL_SECONDS, WaitingRoom

AGAIN_SECONDS: Final = 2.0
"""Mean pause between two calls of a sleeping copy, randomised so that gateways do not call in step."""
_SPREAD: Final = 0.25
_FORGET_SECONDS: Final = 60.0
Answer = TypeVar("Answer")


class WakeCalls:
    """The wake calls of one gateway process. Use it on the event loop only."""

    def __init__(self, room: WaitingRoom) -> None:
        self.room = room
        self._next: dict[str, float] = {}
        """By copy that slept at its last call: `time.monotonic` from which it may be called again."""

    def asleep(self, copy_id: str) -> bool:
        """Return True if the copy slept at a call a moment ago, so that another call is not yet due."""
        return time.monotonic() < self._next.get(copy_id, 0.0)

    def note(self, copy_id: str) -> None:
        """Record that the copy sleeps, or that a call is under way."""
        now = time.monotonic()
        self._next = {key: at for key, at in self._next.items() if at > now - _FORGET_SECONDS}
        self._next[copy_id] = now + AGAIN_SECONDS * random.uniform(1 - _SPREAD, 1 + _SPREAD)  # noqa: S311

    def woke(self, copy_id: str) -> None:
        """Record that the copy answered, so that all waiting requests go on at once."""
        self._next.pop(copy_id, None)

    async def until(
        self, request: BackendRequest, size: int, ask: Callable[[], Awaitable[Answer | None]]
    ) -> Answer:
        """Call `ask` until it returns an answer, and return that.

        Args:
            size: bytes of the request.
            ask: calls the copy, reports to `note` and `woke`, and returns None while the copy sleeps.

        Raises:
            Waking: the room is full, or the wait exceeded the request's `hold_seconds`.
            UpstreamUnreachable: the copy has left the routes.
            GatewayError: from `ask`, or because the request is no longer allowed.
        """
        copy_id, base = request.copy.id, request.resolution.base
        with self.room.place(base, request.tenant, size, request.hold_seconds) as left:
            while left() > 0:
                await asyncio.sleep(min(POLL_SECONDS, left()))
                self.room.check_there(base, copy_id)
                if self.asleep(copy_id):
                    continue
                request.check(request.resolution)
                if copy_id in self._next:
                    # A call that takes this long does not keep other requests from calling.
                    self.note(copy_id)
                if (answer := await ask()) is not None:
                    return answer
        raise self.room.waking(base)
