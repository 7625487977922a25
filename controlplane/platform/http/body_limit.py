"""Bounds request bodies before Django, which writes a whole body to a temporary file ahead of any check."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

Scope = dict[str, Any]
Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_UPLOADS: Final = re.compile(
    r"POST /(?:api/v1|t/[^/]+)/adapters(?:/.*)?|PATCH /api/v1/uploads/[^/]+"
    r"|POST /(?:api/v1|staff)/prompt-sets/?"
)
"""Where files are sent to, by REST and by the web UI."""
HEAD_START_SECONDS: Final = 30.0
BYTES_A_SECOND: Final = 4096
"""Minimum rate of a body after its head start, in bytes per second; it bounds the wait."""


def takes_files(scope: Scope) -> bool:
    """True for requests that may upload files."""
    return _UPLOADS.fullmatch(f"{scope['method']} {scope['path']}") is not None


class BodyLimit:
    """Answers 413 beyond `limit` bytes, or `upload_limit` for file uploads, and 408 to slow senders."""

    def __init__(self, application: Application, *, limit: int, upload_limit: int) -> None:
        self._application = application
        self._limit, self._upload_limit = limit, upload_limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        limit = self._upload_limit if takes_files(scope) else self._limit
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > limit:
            await _refuse(send, 413, "too_large", _too_large(limit))
            return
        loop = asyncio.get_running_loop()
        taken, whole, began, late = 0, False, loop.time(), False

        async def bounded() -> Message:
            # To Django a body that is too long or too late ends like a client that hung up.
            nonlocal taken, whole, late
            if whole:
                return await receive()
            until = began + HEAD_START_SECONDS + taken / BYTES_A_SECOND
            try:
                message = await asyncio.wait_for(receive(), max(0.0, until - loop.time()))
            except TimeoutError:
                whole = late = True
                return {"type": "http.disconnect"}
            taken += len(message.get("body", b""))
            whole = not message.get("more_body", False) or taken > limit
            return {"type": "http.disconnect"} if taken > limit else message

        await self._application(scope, bounded, send)
        # A body sent in chunks declares no length.
        if taken > limit:
            await _refuse(send, 413, "too_large", _too_large(limit))
        elif late:
            await _refuse(
                send,
                408,
                "too_slow",
                "the body did not arrive in time: send it again over a faster connection",
            )


def _too_large(limit: int) -> str:
    return f"the body exceeds the limit of {limit} bytes"


async def _refuse(send: Send, status: int, code: str, detail: str) -> None:
    error = {"code": code, "detail": detail, "attr": None}
    body = json.dumps({"type": "client_error", "errors": [error]}).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
