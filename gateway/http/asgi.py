"""HTTP over raw ASGI: headers in, responses out, cross-origin headers, and who hung up."""

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
"""So long a request goes on before it is worth a task that watches its client."""
_EXPOSED: Final = ", ".join(
    [
        "x-request-id", "x-graftwork-adapter", "x-graftwork-served-model", "x-graftwork-budget",
        "retry-after", "retry-after-ms", "x-should-retry", "idempotent-replayed",
        *(f"x-ratelimit-{field}-{kind}" for field in ("limit", "remaining", "reset")
          for kind in ("requests", "tokens")),
    ]
).encode()  # fmt: skip
JSON: Final[Header] = (b"content-type", b"application/json")


def header(scope: Scope, name: bytes) -> bytes:
    """Value of the first header `name` (lower case), b"" when absent."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return b""


def bearer(scope: Scope) -> str:
    """The token of `Authorization: Bearer ...`, "" when absent."""
    scheme, _, token = header(scope, b"authorization").decode("latin-1").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def header_values(scope: Scope, name: bytes) -> list[str]:
    """Values of every header `name` (lower case), in order."""
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


async def respond(send: Send, status: int, body: bytes, headers: Iterable[Header]) -> None:
    """Sends a whole response."""
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body, "more_body": False})


class Cors:
    """Headers for the browser origins that may call the API, computed once."""

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
        """Response headers for the request's origin; empty when it is not granted."""
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
    """The official clients send telemetry headers of many names: what is asked for is granted."""
    return requested if requested and len(requested) < 2048 else b"authorization, content-type"


class HangUpWatch:
    """Cancels the task that serves a request once its client has gone; `gone` then says so.

    Watching costs a task, so it begins only when the request has taken a moment: when `timeouts` ring.
    """

    __slots__ = ("_receive", "_task", "_timeouts", "_watch", "gone")

    def __init__(self, receive: Receive, timeouts: Timeouts[HangUpWatch]) -> None:
        """`timeouts` are of WATCH_AFTER_SECONDS and call `start`."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a request is served by a task")
        self._task = task
        self._receive = receive
        self._watch: asyncio.Task[None] | None = None
        self.gone = False
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
        self.gone = True
        self._task.cancel()
