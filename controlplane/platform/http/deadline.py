"""A deadline for a whole outgoing request, however slowly the server sends.

httpx bounds each read and write only, which a server that sends a byte a second never exceeds. httpcore
passes a request's timeouts on to its stream unchanged, so each timeout object carries the request's deadline.
"""

from __future__ import annotations

import ssl
import time
from typing import Any, Final, Self

import httpcore2
import httpx2

_PIECE: Final = 1 << 14
"""Bytes per write; the deadline is checked before each."""
_KEY: Final = "deadline"


class Deadline:
    """The deadline of a request, redirects included, in seconds of `time.monotonic`."""

    def __init__(self, *, head: float, total: float) -> None:
        self._start, self._total = time.monotonic(), total
        self.until = self._start + min(head, total)

    @classmethod
    def from_request(cls, request: httpx2.Request, *, head: float, total: float) -> Self:
        """Return the request's deadline, made at the first call; redirects share it by their extensions."""
        deadline: Self = request.extensions.setdefault(_KEY, cls(head=head, total=total))
        steps: dict[str, float | None] = request.extensions.get("timeout", {})
        request.extensions["timeout"] = {
            name: _Step(total if seconds is None else seconds, deadline) for name, seconds in steps.items()
        }
        return deadline

    def has_head(self) -> None:
        """Switch from the deadline for the response's head to that for the whole request."""
        self.until = self._start + self._total


class _Step(float):
    """Timeout of one read or write in seconds, with the deadline of its request."""

    deadline: Deadline

    def __new__(cls, seconds: float, deadline: Deadline) -> Self:
        step = super().__new__(cls, seconds)
        step.deadline = deadline
        return step


def left(timeout: float | None, error: type[Exception]) -> float | None:
    """Return the seconds left for a read or write. Raises `error` once the deadline has passed."""
    if not isinstance(timeout, _Step):
        return timeout
    if (remaining := timeout.deadline.until - time.monotonic()) <= 0:
        raise error("the request exceeded its total time limit")
    return min(float(timeout), remaining)


class DeadlinedStream(httpcore2.NetworkStream):
    """A connection whose reads and writes respect the request's deadline."""

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
