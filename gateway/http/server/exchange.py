"""One request and its answer, with the application's `receive` and `send`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

from gateway.http.server.answer import CONTINUE, Answer
from gateway.http.server.head import Head

logger = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

_GONE: Message = {"type": "http.disconnect"}


class Wire(Protocol):
    """The connection, as an exchange uses it."""

    @property
    def stays(self) -> bool:
        """True if another request may follow, as far as the server is concerned."""

    def write(self, data: bytes) -> None:
        """Send `data`, now or later; ignored if the client has gone."""

    async def drained(self) -> None:
        """Wait until the client has taken enough of the written data, or has gone."""

    def reads(self) -> None:
        """Note that the application has read the body so far."""

    def ended(self, exchange: Exchange) -> None:
        """Note that the answer is complete, or never will be."""

    def finished(self, exchange: Exchange) -> None:
        """Note that the application has finished with the exchange."""


class Exchange:
    """Runs the application for one request.

    Attributes:
        task: the task that runs the application.
        waiting: bytes of the body that the application has not read yet.
        whole: True once the request's body has ended.
        answer: None until the application begins one.
    """

    __slots__ = (
        "__weakref__",
        "_body_end_sent",
        "_expects",
        "_gone",
        "_head",
        "_loop",
        "_parts",
        "_waiter",
        "_wire",
        "answer",
        "task",
        "waiting",
        "whole",
    )

    def __init__(self, wire: Wire, head: Head, loop: asyncio.AbstractEventLoop, *, whole: bool) -> None:
        self._wire, self._head, self._loop = wire, head, loop
        self._parts: list[bytes] = []
        self._waiter: asyncio.Future[None] | None = None
        self._expects = head.expects_continue
        self._gone = self._body_end_sent = False
        self.waiting, self.whole = 0, whole
        self.answer: Answer | None = None
        self.task: asyncio.Task[None] | None = None

    async def run(self, application: Application, scope: Message) -> None:
        """Serve the request, and always report its end to the connection."""
        try:
            await application(scope, self.receive, self.send)
        except Exception:
            logger.exception("the application failed on a request")
        finally:
            if self.answer is None or not self.answer.ended:
                self._wire.ended(self)
            self._wire.finished(self)

    # Called by the application.

    async def receive(self) -> Message:
        if not self._parts and not self._gone and (self._body_end_sent or not self.whole):
            if self._expects and not self.whole and self.answer is None:
                self._expects = False
                self._wire.write(CONTINUE)
            await self._wait()
        if self._parts:
            body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._parts.clear()
            self.waiting = 0
            self._wire.reads()
        elif self._gone or self._body_end_sent:
            return _GONE
        else:
            body = b""
        self._body_end_sent = self.whole
        return {"type": "http.request", "body": body, "more_body": not self.whole}

    async def send(self, message: Message) -> None:
        """Send a message. Raises RuntimeError if out of order, ValueError for a line break in a header."""
        answer = self.answer
        if message["type"] == "http.response.start":
            # Until the first byte is sent, the application may replace a failed answer by an error.
            if answer is not None and answer.begun:
                raise RuntimeError("the answer has begun")
            head = self._head
            self.answer = Answer(
                head.method,
                head.http_version,
                message["status"],
                message["headers"],
                keeps=head.keep_alive and self.whole and self._wire.stays,
            )
            return
        if answer is None or answer.ended:
            raise RuntimeError("there is no answer that this could be a part of")
        more = message.get("more_body", False)
        self._wire.write(answer.frame(message.get("body", b""), more=more))
        if more:
            await self._wire.drained()
        else:
            self._wire.ended(self)

    # Called by the connection.

    def feed(self, data: bytes, *, whole: bool) -> None:
        """Add more of the body."""
        if data:
            self._parts.append(data)
            self.waiting += len(data)
        self.whole = whole
        self._wake()

    def disconnect(self) -> None:
        """Note that no more data comes: the client has gone, or sends an invalid body."""
        self._gone = True
        self._wake()

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
