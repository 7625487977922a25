"""HTTP over raw ASGI: request headers, responses, cross-origin headers and client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any, Final

from gateway.http.timeouts import Timeouts

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Header = tuple[bytes, bytes]

WATCH_AFTER_SECONDS: Final = 0.05
"""A request gets a task that watches its client only after this long, since tasks cost time."""
_EXPOSED: Final = ", ".join(
    [
        "x-request-id",
        "x-graftwork-adapter",
        "x-graftwork-served-model",
        "x-graftwork-budget",
        "retry-after",
        "retry-after-ms",
        "x-should-retry",
        "idempotent-replayed",
        *(
            f"x-ratelimit-{field}-{kind}"
            for field in ("limit", "remaining", "reset")
            for kind in ("requests", "tokens")
        ),
    ]
).encode()
JSON: Final[Header] = (b"content-type", b"application/json")
EVENT_STREAM: Final[tuple[Header, ...]] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


def header(scope: Scope, name: bytes) -> bytes:
    """Return the first header `name` (lower case), b"" when absent."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return b""


def bearer(scope: Scope) -> str:
    """Return the token of `Authorization: Bearer ...`, "" when absent."""
    scheme, _, token = header(scope, b"authorization").decode("latin-1").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def header_values(scope: Scope, name: bytes) -> list[str]:
    """Return the values of all headers `name` (lower case), in order."""
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


async def respond(send: Send, status: int, body: bytes, headers: Iterable[Header]) -> None:
    """Send a whole response."""
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body, "more_body": False})


class Cors:
    """Response headers for the permitted browser origins, computed once."""

    def __init__(self, origins: frozenset[str]) -> None:
        self._granted: Mapping[bytes, list[Header]] = {
            origin.encode(): [
                (b"access-control-allow-origin", origin.encode()),
                (b"access-control-expose-headers", _EXPOSED),
                (b"vary", b"Origin"),
            ]
            for origin in origins
        }

    def headers(self, scope: Scope) -> list[Header]:
        """Return the headers for the request's origin; empty if it is not permitted."""
        if not self._granted:
            return []
        return self._granted.get(header(scope, b"origin"), [])

    async def preflight(self, scope: Scope, send: Send, request_id: bytes) -> None:
        headers = self.headers(scope)
        if headers:
            headers = [
                *headers,
                (b"access-control-allow-methods", b"GET, POST, OPTIONS"),
                (b"access-control-allow-headers", _allowed(header(scope, b"access-control-request-headers"))),
                (b"access-control-max-age", b"600"),
            ]
        await respond(send, 204, b"", [(b"x-request-id", request_id), *headers])


def _allowed(requested: bytes) -> bytes:
    """Allow all requested headers, because the official clients send telemetry headers of many names."""
    return requested if requested and len(requested) < 2048 else b"authorization, content-type"


class HangUpWatch:
    """Cancels the task that serves a request when its client disconnects, and sets `disconnected`.

    Watching costs a task, so it starts only after the request has run for a moment, by `timeouts`.
    """

    __slots__ = ("_receive", "_task", "_timeouts", "_watch", "disconnected")

    def __init__(self, receive: Receive, timeouts: Timeouts[HangUpWatch]) -> None:
        """`timeouts` must be of WATCH_AFTER_SECONDS and call `start`."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a request is served by a task")
        self._task = task
        self._receive = receive
        self._watch: asyncio.Task[None] | None = None
        self.disconnected = False
        self._timeouts = timeouts
        timeouts.begin(self, task.get_loop())

    def stop(self) -> None:
        self._timeouts.end(self)
        if self._watch is not None:
            self._watch.cancel()

    def start(self) -> None:
        self._watch = asyncio.create_task(self._wait())

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.disconnected = True
        self._task.cancel()
