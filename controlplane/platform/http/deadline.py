"""A bound on the whole of an outgoing request, however slowly the other side drips.

httpx bounds each read and each write; a server that sends a byte a second keeps to that for ever. httpcore
hands a request's timeouts on to its stream as they are, so here each of them knows when the request ends.
"""

from __future__ import annotations

import ssl
import time
from typing import Any, Final, Self

import httpcore2
import httpx2

_PIECE: Final = 1 << 14
"""Bytes written at a time: in between it is looked at the clock."""
_KEY: Final = "deadline"


class Deadline:
    """When a request ends, redirects included. Time is `time.monotonic`'s, in seconds."""

    def __init__(self, *, head: float, total: float) -> None:
        self._start, self._total = time.monotonic(), total
        self.until = self._start + min(head, total)

    @classmethod
    def of(cls, request: httpx2.Request, *, head: float, total: float) -> Self:
        """The request's own: a redirect has the extensions, and so the deadline, of what it follows."""
        deadline: Self = request.extensions.setdefault(_KEY, cls(head=head, total=total))
        steps: dict[str, float | None] = request.extensions.get("timeout", {})
        request.extensions["timeout"] = {
            name: _Step(total if seconds is None else seconds, deadline) for name, seconds in steps.items()
        }
        return deadline

    def has_head(self) -> None:
        """The answer has begun: from now on the whole counts."""
        self.until = self._start + self._total


class _Step(float):
    """Seconds that one read or write may take, and the deadline of the request that it belongs to."""

    deadline: Deadline

    def __new__(cls, seconds: float, deadline: Deadline) -> Self:
        step = super().__new__(cls, seconds)
        step.deadline = deadline
        return step


def left(timeout: float | None, error: type[Exception]) -> float | None:
    """What a step may take now. Raises `error` when the request's time is over."""
    if not isinstance(timeout, _Step):
        return timeout
    if (rest := timeout.deadline.until - time.monotonic()) <= 0:
        raise error("it takes longer than the whole may take")
    return min(float(timeout), rest)


class DeadlinedStream(httpcore2.NetworkStream):
    """A connection whose every step ends with its request."""

    def __init__(self, stream: httpcore2.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, left(timeout, httpcore2.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), _PIECE):
            self._stream.write(buffer[start : start + _PIECE], left(timeout, httpcore2.WriteTimeout))

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        seconds = left(timeout, httpcore2.ConnectTimeout)
        return DeadlinedStream(self._stream.start_tls(ssl_context, server_hostname, seconds))

    def close(self) -> None:
        self._stream.close()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
