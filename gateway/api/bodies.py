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
    """Bounds tasks' waits that may all take equally long."""

    def __init__(self, seconds: float) -> None:
        self._timeouts: Timeouts[asyncio.Task[Any]] = Timeouts(seconds, self._ring)
        self._late: set[asyncio.Task[Any]] = set()

    def begin(self) -> asyncio.Task[Any]:
        """From now on the task that asks is on time; it is cancelled when it is late. `end` must follow."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        if task is None:
            raise RuntimeError("a request is served by a task")
        self._timeouts.begin(task, loop)
        return task

    def missed(self, task: asyncio.Task[Any]) -> bool:
        """Whether a cancellation was for being late, and for nothing else besides."""
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
        most: bytes of a body at most.
        seconds: how long a body may take to arrive: a client that drips it holds memory meanwhile.
    """

    def __init__(self, *, most: int = BODY_BYTES, seconds: float = BODY_SECONDS) -> None:
        self._most, self._seconds = most, seconds
        self._deadlines = Deadlines(seconds)

    async def read(self, scope: Scope, receive: Receive) -> bytes:
        """The whole body.

        Raises:
            PayloadTooLarge: it is, or is said to be, larger than it may.
            UnsupportedEncoding: it is compressed.
            BadRequest: it broke off, or how it is sent can be read in two ways.
            RequestTimeout: it did not come in time.
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
                # Some servers take the first of several encodings, some the last.
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
