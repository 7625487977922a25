"""One client's connection: requests are answered one after another."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from gateway.http.server.answer import refusal
from gateway.http.server.body import Body, ChunkedBody, LengthBody, MalformedChunks
from gateway.http.server.exchange import Exchange, Message
from gateway.http.server.head import Head, Refused, parse
from gateway.http.server.limits import BUFFER_BYTES, HEAD_BYTES

if TYPE_CHECKING:
    from gateway.http.server.server import Server


class Connection(asyncio.Protocol):
    """Splits incoming bytes into requests. A refused or partly read request ends the connection."""

    __slots__ = (
        "__weakref__",
        "_ahead",
        "_body",
        "_buffer",
        "_client",
        "_drained",
        "_exchange",
        "_held",
        "_lingers",
        "_loop",
        "_malformed",
        "_own",
        "_server",
        "_transport",
    )

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop) -> None:
        self._server, self._loop = server, loop
        self._buffer = b""
        self._ahead = 0
        """Bytes of the buffer that were searched for a head's end."""
        self._body: Body = LengthBody(0)
        self._exchange: Exchange | None = None
        self._drained: asyncio.Future[None] | None = None
        self._held = self._lingers = self._malformed = False

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._client = _address(transport.get_extra_info("peername"))
        self._own = _address(transport.get_extra_info("sockname"))
        self._server.opened(self)
        self._server.heads.begin(self, self._loop)

    def data_received(self, data: bytes) -> None:
        if self._lingers:
            return
        self._buffer = self._buffer + data if self._buffer else data
        if self._exchange is None:
            self._begin()
        elif not self._body.done:
            self._take(self._exchange)
        self._hold()

    def eof_received(self) -> None:
        """Treat EOF as a disconnect: a half-closed connection cannot be told from a closed one."""
        if self._exchange is not None:
            self._exchange.disconnect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.closed(self)
        self._server.heads.end(self)
        self._server.lingering.end(self)
        if self._exchange is not None:
            self._exchange.disconnect()
        self.resume_writing()

    def pause_writing(self) -> None:
        if self._drained is None:
            self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    # Called by the exchange.

    @property
    def stays(self) -> bool:
        return not self._server.stopping

    def write(self, data: bytes) -> None:
        if data and not self._transport.is_closing():
            self._transport.write(data)

    async def drained(self) -> None:
        if self._drained is not None:
            # Shielded: the cancellation of one waiter would cancel the future for all.
            await asyncio.shield(self._drained)

    def reads(self) -> None:
        if self._held and not self._lingers:
            self._held = False
            self._transport.resume_reading()

    def ended(self, exchange: Exchange) -> None:
        if self._exchange is not exchange:
            return
        self._exchange = None
        if self._transport.is_closing():
            return
        answer = exchange.answer
        if self._malformed and (answer is None or not answer.begun):
            self._refuse(400, "The request's body is not in well-formed chunks.")
        elif answer is None or not answer.begun:
            self._refuse(500, "The server failed on this request.")
        elif not answer.ended:
            # Cut the connection, so that the client does not take half an answer for a whole one.
            self._transport.abort()
        elif not exchange.whole:
            self._linger()
        elif not answer.keeps or self._server.stopping:
            self._close_after_answer()
        else:
            self._server.heads.begin(self, self._loop)
            self.reads()
            if self._buffer:
                self._begin()

    def finished(self, exchange: Exchange) -> None:
        self._server.finished(exchange)

    # Called by the server.

    def stop(self) -> None:
        """Close the connection, now or after the current answer."""
        if self._exchange is None and not self._lingers:
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def head_is_late(self) -> None:
        if self._buffer:
            self._refuse(408, "The request's headers did not arrive in time.")
        else:
            self._transport.close()

    # Internal.

    def _begin(self) -> None:
        """Start the request whose head is in the buffer, if it is complete."""
        if self._buffer[:2] == b"\r\n":
            # Old clients send an empty line after a body.
            self._buffer = self._buffer[2:]
        end = self._buffer.find(b"\r\n\r\n", max(0, self._ahead - 3)) + 4
        self._ahead = len(self._buffer)
        if (end if end >= 4 else self._ahead) > HEAD_BYTES:
            self._refuse(431, f"The request's headers exceed {HEAD_BYTES} bytes.")
            return
        if end < 4:
            return
        data, self._buffer, self._ahead = self._buffer[:end], self._buffer[end:], 0
        try:
            head = parse(data)
        except Refused as refused:
            self._refuse(refused.status, str(refused))
            return
        self._server.heads.end(self)
        self._body = ChunkedBody() if head.length is None else LengthBody(head.length)
        exchange = self._exchange = Exchange(self, head, self._loop, whole=self._body.done)
        if self._buffer and not self._body.done:
            self._take(exchange)
        self._server.serve(exchange, self._scope(head))

    def _take(self, exchange: Exchange) -> None:
        try:
            part, self._buffer = self._body.take(self._buffer)
        except MalformedChunks:
            # The application may still answer; later bytes are never read.
            self._buffer, self._body, self._malformed = b"", LengthBody(0), True
            exchange.disconnect()
        else:
            exchange.feed(part, whole=self._body.done)

    def _hold(self) -> None:
        """Pause reading from a client that sends faster than the application reads."""
        ahead = len(self._buffer) + (self._exchange.waiting if self._exchange is not None else 0)
        if ahead > BUFFER_BYTES and not self._held and not self._lingers and self._exchange is not None:
            self._held = True
            self._transport.pause_reading()

    def _scope(self, head: Head) -> Message:
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": head.http_version,
            "method": head.method,
            "scheme": self._server.scheme,
            "path": head.path,
            "raw_path": head.raw_path,
            "query_string": head.query,
            "root_path": "",
            "headers": head.headers,
            "client": self._client,
            "server": self._own,
        }

    def _refuse(self, status: int, message: str) -> None:
        self._server.heads.end(self)
        self.write(refusal(status, message))
        self._linger()

    def _close_after_answer(self) -> None:
        """Close after an answer: at once, unless the client has sent bytes that were not read."""
        if self._buffer:
            self._linger()
        else:
            self._transport.close()

    def _linger(self) -> None:
        """Read and drop data for a moment: data for a closed socket makes the kernel drop the answer."""
        self._buffer, self._lingers = b"", True
        if self._held:
            self._transport.resume_reading()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._server.lingering.begin(self, self._loop)

    def linger_is_over(self) -> None:
        self._transport.close()


def _address(name: object) -> tuple[str, int] | None:
    return (name[0], name[1]) if isinstance(name, tuple) else None
