"""Calls of copies that only a call can wake: of all requests that wait for one copy, one at a time asks."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from gateway.backends.base import BackendRequest
from gateway.routing.waiting_room import POLL_SECONDS, WaitingRoom

AGAIN_SECONDS: Final = 2.0
"""Between two calls of a copy that sleeps, about: gateways must not call in step."""
_SPREAD: Final = 0.25
_FORGET_SECONDS: Final = 60.0
Answer = TypeVar("Answer")


class WakeCalls:
    """Of one gateway process. Lives on the event loop."""

    def __init__(self, room: WaitingRoom) -> None:
        self.room = room
        self._next: dict[str, float] = {}
        """By copy that slept when it was last asked: when it may be asked again, by `time.monotonic`."""

    def asleep(self, copy_id: str) -> bool:
        """Whether that was just now, so that nobody needs to ask."""
        return time.monotonic() < self._next.get(copy_id, 0.0)

    def note(self, copy_id: str) -> None:
        """The copy sleeps, or is being asked whether it still does."""
        now = time.monotonic()
        self._next = {key: at for key, at in self._next.items() if at > now - _FORGET_SECONDS}
        self._next[copy_id] = now + AGAIN_SECONDS * random.uniform(1 - _SPREAD, 1 + _SPREAD)  # noqa: S311

    def woke(self, copy_id: str) -> None:
        """The copy has answered: all that wait for it go on at once."""
        self._next.pop(copy_id, None)

    async def until(
        self, request: BackendRequest, size: int, ask: Callable[[], Awaitable[Answer | None]]
    ) -> Answer:
        """What `ask` gives, once it gives something.

        Args:
            size: bytes of the request.
            ask: calls the copy; None when it still sleeps. It tells `note` and `woke`.

        Raises:
            Waking: the room is full, or the time was over first.
            UpstreamUnreachable: the copy has left the routes.
            GatewayError: of `ask`, or because the request is no longer allowed.
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
                    # An answer that is under way for so long keeps nobody from asking, too.
                    self.note(copy_id)
                if (answer := await ask()) is not None:
                    return answer
        raise self.room.waking(base)
