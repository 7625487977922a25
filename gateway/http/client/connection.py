"""One connection, which carries one exchange after another."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple, cast

import httptools

from gateway.http.client.errors import Broken, HttpClientError, TimedOut
from gateway.http.timeouts import Timeouts

BUFFER_BYTES: Final = 1 << 18
"""Most unread bytes before the connection stops reading."""
HEAD_BYTES: Final = 1 << 16
"""Largest status line and headers."""


class Origin(NamedTuple):
    """The server of a connection; connections of one origin are interchangeable."""

    host: str
    port: int
    secure: bool


class Connection(asyncio.Protocol):
    """Streams answers, one exchange at a time.

    Attributes:
        status: the answer's status; 0 until its headers have arrived.
        headers: names in lower case, values in latin-1; the last of a repeated name.
        idle_since: time by the loop's clock at which it entered the pool.
    """

    __slots__ = (
        "__weakref__",
        "_buffered",
        "_busy",
        "_done",
        "_error",
        "_head_bytes",
        "_heard",
        "_keeps",
        "_loop",
        "_parser",
        "_parts",
        "_paused",
        "_silence",
        "_silences",
        "_timer",
        "_transport",
        "_until_eof",
        "_waiter",
        "headers",
        "idle_since",
        "origin",
        "status",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, origin: Origin) -> None:
        self._loop = loop
        self.origin = origin
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._silences: Timeouts[Connection] | None = None
        self._error: HttpClientError | None = None
        self.status, self.headers = 0, dict[str, str]()
        self.idle_since = 0.0
        self._busy = self._done = self._keeps = self._paused = self._until_eof = False
        self._buffered = self._head_bytes = 0
        self._silence = self._heard = 0.0

    # Used by the holder of the connection.

    def send(self, data: bytes, *, silence: float, silences: Timeouts[Connection]) -> None:
        """Start an exchange with the whole request `data`.

        `silence` is the longest wait in seconds for more; `silences` are timeouts of that length that call
        `check_silence`.

        Raises:
            Broken: the server has already closed the connection.
        """
        if self._transport is None or self._transport.is_closing():
            raise Broken("the connection has ended")
        self.status, self.headers = 0, {}
        self._busy, self._done, self._keeps, self._until_eof = True, False, False, True
        self._head_bytes = 0
        self._silence, self._heard = silence, self._loop.time()
        self._silences = silences
        silences.begin(self, self._loop)
        self._transport.write(data)

    async def head(self) -> int:
        """Return the status once the answer's headers have arrived. Raises Broken, TimedOut."""
        while not self.status:
            if self._error is not None:
                raise self._error
            await self._wait()
        return self.status

    async def read(self) -> bytes:
        """Return the next bytes of the body, at least one; b"" at its end. Raises Broken, TimedOut."""
        while not self._parts:
            if self._done:
                return b""
            if self._error is not None:
                raise self._error
            await self._wait()
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self._buffered = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return data

    def finish(self) -> bool:
        """End the exchange; True if the connection can be reused, else it is cut."""
        if self._silences is not None:
            self._silences.end(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        usable = self._done and self._keeps and self._error is None and not self._parts
        self._busy = False
        if not usable:
            self.abort()
        return usable

    @property
    def usable(self) -> bool:
        """True if the server has neither closed the connection nor sent data while it was idle."""
        return self._error is None and self._transport is not None and not self._transport.is_closing()

    def abort(self) -> None:
        """Cut the connection."""
        if self._transport is not None:
            self._transport.abort()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._error is not None:
            return
        if not self._busy or self._done:
            # Unexpected data must not become the next request's answer.
            self._fail(Broken("the server said more than it was asked"))
            return
        self._heard = self._loop.time()
        if not self.status:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(Broken(f"the answer is not HTTP/1.1 ({type(error).__name__})"))
            return
        if not self.status and self._head_bytes > HEAD_BYTES:
            self._fail(Broken(f"the answer's headers exceed {HEAD_BYTES} bytes"))
            return
        if self._buffered > BUFFER_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._busy and not self._done and self._error is None:
            if exc is None and self.status and self._until_eof:
                self._done = True
            else:
                where = "within" if self.status else "before"
                self._error = Broken(f"the connection ended {where} an answer")
        self._wake()
        # The parser refers to this object's methods: after a `gc.freeze` the cycle would never be collected.
        del self._parser

    # Called by the parser.

    def on_message_begin(self) -> None:
        if self._done:
            # The error ends the parsing, so that nothing that follows gets into this answer.
            raise Broken("the server said more than it was asked")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.status:
            # Trailers are ignored, but their number must be bounded.
            self._head_bytes += len(name) + len(value)
            if self._head_bytes > HEAD_BYTES:
                raise Broken("the answer's trailers are too long")
            return
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            # An interim answer, such as 102: the final one follows.
            self.headers = {}
            return
        chunked = "chunked" in self.headers.get("transfer-encoding", "").lower()
        self._until_eof = not chunked and "content-length" not in self.headers
        self._keeps = self._parser.should_keep_alive()
        self.status = status
        self._head_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)
        self._buffered += len(body)

    def on_message_complete(self) -> None:
        if self.status:
            self._done = True

    # Internal.

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def check_silence(self) -> None:
        """Check the time of the last data; moving a timer for each piece would cost more than the piece."""
        if self._done:
            self._timer = None
            return
        if self._paused:
            # The gateway itself has paused reading.
            self._heard = self._loop.time()
        left = self._heard + self._silence - self._loop.time()
        if left <= 0:
            self._timer = None
            self._fail(TimedOut(f"the server sent nothing for {self._silence:g} s"))
        else:
            self._timer = self._loop.call_later(left, self.check_silence)

    def _fail(self, error: HttpClientError) -> None:
        if self._error is None:
            self._error = error
        self.abort()
        self._wake()
