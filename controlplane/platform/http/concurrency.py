"""Bounds the requests that Django works on at once: each takes a thread, and most a database connection."""

from __future__ import annotations

import asyncio
from typing import Final

from controlplane.platform.http.body_limit import Application, Message, Receive, Scope, Send

AT_ONCE: Final = 64
"""Twice the connections to the database."""


class ConcurrencyLimit:
    """Lets `at_once` requests into Django, each from the end of its body to the start of its answer.

    A slow body therefore holds no place, and neither does a long answer, such as a live page.
    """

    def __init__(self, application: Application, *, at_once: int = AT_ONCE) -> None:
        self._application = application
        self._free = asyncio.Semaphore(at_once)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        held, taken = False, False

        async def receive_in_turn() -> Message:
            nonlocal held, taken
            message = await receive()
            if not taken and message["type"] == "http.request" and not message.get("more_body", False):
                taken = True
                await self._free.acquire()
                held = True
            return message

        def give_back() -> None:
            nonlocal held
            if held:
                held = False
                self._free.release()

        async def send_out_of_turn(message: Message) -> None:
            give_back()
            await send(message)

        try:
            await self._application(scope, receive_in_turn, send_out_of_turn)
        finally:
            give_back()
