"""Writes answers: heads, framing, and the server's own error answers."""

from __future__ import annotations

import http
import json
import time
from collections.abc import Iterable
from email.utils import formatdate
from typing import Final

_STATUS: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in http.HTTPStatus
}
_BODILESS: Final = frozenset({204, 304})
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class _Clock:
    """The Date header, made once a second."""

    __slots__ = ("_line", "_second")

    def __init__(self) -> None:
        self._second, self._line = 0, b""

    def line(self) -> bytes:
        if (second := int(time.time())) != self._second:
            self._second, self._line = second, f"date: {formatdate(second, usegmt=True)}\r\n".encode()
        return self._line


_clock: Final = _Clock()


class Answer:
    """One outgoing answer with its HTTP framing.

    Args:
        method, http_version: of the request.
        keeps: True if the connection may carry another request after this answer.

    Attributes:
        keeps: the same, as announced to the client.
        begun, ended: True once the first bytes, or all bytes, have been framed.
    """

    __slots__ = ("_chunked", "_headers", "_method", "_modern", "_mute", "_status", "begun", "ended", "keeps")

    def __init__(
        self,
        method: str,
        http_version: str,
        status: int,
        headers: Iterable[tuple[bytes, bytes]],
        *,
        keeps: bool,
    ) -> None:
        self._method, self._modern = method, http_version == "1.1"
        self._status, self._headers = status, headers
        self._mute = method == "HEAD" or status in _BODILESS
        self._chunked = False
        self.keeps = keeps
        self.begun = self.ended = False

    def frame(self, body: bytes, *, more: bool) -> bytes:
        """Return the next bytes on the wire for a part of the body; without `more` it is the last.

        Raises:
            ValueError: a header contains a line break, or the application's Content-Length is no number.
        """
        head = b""
        if not self.begun:
            head = self._head(None if more else len(body))
            self.begun = True
        self.ended = not more
        if self._mute:
            return head
        if not self._chunked:
            return head + body if head else body
        if not body:
            return head if more else head + b"0\r\n\r\n"
        return b"%b%x\r\n%b\r\n%b" % (head, len(body), body, b"" if more else b"0\r\n\r\n")

    def _head(self, length: int | None) -> bytes:
        fields, length_value = list[bytes](), b""
        for name, value in self._headers:
            # Drop the application's own length: clients refuse an answer with two, even if they are equal.
            if name.lower() == b"content-length":
                length_value = value
            else:
                fields.append(b"%b: %b\r\n" % (name, value))
        if length_value and self._mute:
            # Only the application knows how long the body would have been.
            length = int(length_value)
        block = b"".join(fields)
        if not block.count(b"\n") == block.count(b"\r") == len(fields):
            raise ValueError("a header's value holds a line's end")
        return b"".join(
            (
                _STATUS.get(self._status) or b"HTTP/1.1 %d \r\n" % self._status,
                block,
                self._framing(length),
                _clock.line(),
                b"\r\n",
            )
        )

    def _framing(self, length: int | None) -> bytes:
        """Return the headers that delimit the answer and say if the connection stays open."""
        framing = b""
        if self._status in _BODILESS:
            pass
        elif length is not None:
            framing = b"content-length: %d\r\n" % length
        elif self._modern:
            self._chunked = True
            framing = b"transfer-encoding: chunked\r\n"
        else:
            self.keeps = False
        if not self.keeps:
            return framing + b"connection: close\r\n"
        return framing if self._modern else framing + b"connection: keep-alive\r\n"


def refusal(status: int, message: str) -> bytes:
    """Return the server's own whole answer, in the form of OpenAI's errors."""
    error = {"message": message, "type": "invalid_request_error", "code": "malformed_request", "param": None}
    body = json.dumps({"error": error}).encode()
    answer = Answer("GET", "1.1", status, [(b"content-type", b"application/json")], keeps=False)
    return answer.frame(body, more=False)
