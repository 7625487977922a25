"""Reads request bodies, within a size and a time."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from gateway.errors import BadRequest, PayloadTooLarge, RequestTimeout, UnsupportedEncoding
from gateway.http.asgi import Receive, Scope
from gateway.http.timeouts import Timeouts

BODY_BYTES: Final = 2 << 20
BODY_SECONDS: Final = 60


class Deadlines:
    """Deadlines of equal length for many tasks' waits."""

    def __init__(self, seconds: float) -> None:
        self._timeouts: Timeouts[asyncio.Task[Any]] = Timeouts(seconds, self._ring)
        self._late: set[asyncio.Task[Any]] = set()

    def begin(self) -> asyncio.Task[Any]:
        """Start the current task's deadline, which cancels it when it passes. `end` must follow."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        if task is None:
            raise RuntimeError("a request is served by a task")
        self._timeouts.begin(task, loop)
        return task

    def missed(self, task: asyncio.Task[Any]) -> bool:
        """Return True if the task was cancelled only by its deadline."""
        return task in self._late and task.uncancel() == 0

    def end(self, task: asyncio.Task[Any]) -> None:
        self._timeouts.end(task)
        self._late.discard(task)

    def _ring(self, task: asyncio.Task[Any]) -> None:
        self._late.add(task)
        task.cancel()


class Bodies:
    """Reads whole request bodies.

    Args:
        most: largest body in bytes.
        seconds: longest time for a body to arrive; a slow client holds memory meanwhile.
    """

    def __init__(self, *, most: int = BODY_BYTES, seconds: float = BODY_SECONDS) -> None:
        self._most, self._seconds = most, seconds
        self._deadlines = Deadlines(seconds)

    async def read(self, scope: Scope, receive: Receive) -> bytes:
        """Read the whole body.

        Raises:
            PayloadTooLarge: the body or its Content-Length exceeds the bound.
            UnsupportedEncoding: it is compressed.
            BadRequest: it broke off, or its framing is ambiguous.
            RequestTimeout: it did not arrive in time.
        """
        self._check(scope)
        task = self._deadlines.begin()
        try:
            return await self._collect(receive)
        except asyncio.CancelledError:
            if not self._deadlines.missed(task):
                raise
            raise RequestTimeout(
                f"The body did not arrive within {self._seconds:g} s. Send it faster, or less of it."
            ) from None
        finally:
            self._deadlines.end(task)

    def _check(self, scope: Scope) -> None:
        for name, value in scope["headers"]:
            if name == b"content-length":
                if value.isdigit() and int(value) > self._most:
                    raise self._too_large()
            elif name == b"transfer-encoding" and value.strip().lower() != b"chunked":
                # Some servers apply the first of several encodings, some the last.
                raise BadRequest("Transfer-Encoding may be chunked alone.")
            elif name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
                raise UnsupportedEncoding("The body is compressed. Send it without a Content-Encoding.")

    async def _collect(self, receive: Receive) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise BadRequest("The body broke off before its end, or its chunks are malformed.")
            if part := message.get("body", b""):
                parts.append(part)
                size += len(part)
                if size > self._most:
                    raise self._too_large()
            if not message.get("more_body"):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    def _too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(f"The body exceeds {self._most} bytes.")
